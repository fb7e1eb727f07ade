// What the app of the callback endpoint has of its own: an identity and its rights, the host's storage account (its
// package is code that runs as it, so the engine's account must be out of reach), a vault with a copy of the callback key.

param suffix string
param location string
param tags object

@description('False: reached through private endpoints only.')
param publicAccess bool

param replication string
param packageContainer string

@description('Whether SAS_CALLBACK_KEY is a secret setting.')
param hasKey bool

@description('URI of a vault of yours, as for the engine; empty: one is made.')
param keyVaultUri string

param operatorPrincipalId string
param operatorPrincipalType string
param namespaceName string
param stateAccountName string
param tableName string
param componentName string

var abbreviations = loadJsonContent('../abbreviations.json')

module identity 'identity.bicep' = {
  name: 'callback-identity'
  params: {
    name: '${abbreviations.managedIdentity}${suffix}-callbacks'
    location: location
    tags: tags
  }
}

module host 'storage-account.bicep' = {
  name: 'callback-host-storage'
  params: {
    name: '${abbreviations.storageCallbacks}${suffix}'
    location: location
    tags: tags
    replication: replication
    publicAccess: publicAccess
    containers: [
      packageContainer
    ]
  }
}

module secrets 'secrets.bicep' = {
  name: 'callback-secrets'
  params: {
    vaultName: '${abbreviations.keyVaultCallbacks}${suffix}'
    location: location
    tags: tags
    publicAccess: publicAccess
    settingsInVault: hasKey ? 'SAS_CALLBACK_KEY' : ''
    vaultUri: keyVaultUri
    appPrincipalId: identity.outputs.principalId
    operatorPrincipalId: operatorPrincipalId
    operatorPrincipalType: operatorPrincipalType
  }
}

module access '../access/callback-access.bicep' = {
  name: 'callback-access'
  params: {
    principalId: identity.outputs.principalId
    namespaceName: namespaceName
    hostAccountName: host.outputs.name
    stateAccountName: stateAccountName
    tableName: tableName
    componentName: componentName
  }
}

output identityId string = identity.outputs.id
output identityClientId string = identity.outputs.clientId
output identityPrincipalId string = identity.outputs.principalId
output hostAccountId string = host.outputs.id
output hostAccountName string = host.outputs.name
output hostBlobEndpoint string = host.outputs.blobEndpoint
output settings array = secrets.outputs.settings
output vaultId string = secrets.outputs.vaultId
output vaultName string = secrets.outputs.vaultName
