// The app's secret settings: a reference for each, and, where no vault is given, the vault and who may use it.

param vaultName string
param location string
param tags object
param publicAccess bool

@description('Names of settings whose values are secrets, with commas between; empty for none.')
param settingsInVault string

@description('URI of a vault that exists, without a slash at its end; empty: one is made.')
param vaultUri string

param appPrincipalId string
param operatorPrincipalId string
param operatorPrincipalType string

var roles = loadJsonContent('../roles.json')
var needsVault = !empty(settingsInVault) && empty(vaultUri)
var settingNames = empty(settingsInVault) ? [] : split(replace(settingsInVault, ' ', ''), ',')
var secretsUri = needsVault ? vault!.outputs.uri : '${vaultUri}/'

module vault 'key-vault.bicep' = if (needsVault) {
  name: '${vaultName}-vault'
  params: {
    name: vaultName
    location: location
    tags: tags
    publicAccess: publicAccess
  }
}

module appReads '../access/vault-role.bicep' = if (needsVault) {
  name: '${vaultName}-app-reads'
  params: {
    vaultName: vault!.outputs.name
    principalId: appPrincipalId
    principalType: 'ServicePrincipal'
    roleId: roles.keyVaultSecretsUser.id
    reason: roles.keyVaultSecretsUser.why
  }
}

module operatorSets '../access/vault-role.bicep' = if (needsVault && !empty(operatorPrincipalId)) {
  name: '${vaultName}-operator-sets'
  params: {
    vaultName: vault!.outputs.name
    principalId: operatorPrincipalId
    principalType: operatorPrincipalType
    roleId: roles.keyVaultSecretsOfficer.id
    reason: roles.keyVaultSecretsOfficer.why
  }
}

// Secrets have no underscores: SAS_CALLBACK_KEY is the secret sas-callback-key.
output settings array = [for name in settingNames: {
  name: name
  value: '@Microsoft.KeyVault(SecretUri=${secretsUri}secrets/${toLower(replace(name, '_', '-'))})'
}]
output vaultId string = needsVault ? vault!.outputs.id : ''
output vaultName string = needsVault ? vault!.outputs.name : ''
