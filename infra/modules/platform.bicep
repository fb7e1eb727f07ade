// All resources of one environment. Its parameters are checked by main.bicep, which describes them.

param suffix string // ends every name, and is the same whenever this environment is deployed again
param tags object
param location string
param operatorPrincipalId string
param operatorPrincipalType string
param operatorReadsQueues bool

@description('More than 0 refuses the deployment: give the operator and each application an identity of their own.')
@minValue(0)
@maxValue(0)
param principalsGivenTwice int

param applications array
@secure()
param businessSettings object
param settingsInVault string
param keyVaultUri string
param callbackUrl string
param serviceBusSku string
param messagingUnits int
param vnetEnabled bool
param networkOctets string
param stateReplication string
param tableName string
param alwaysReadySubmission int
param alwaysReadyScheduler int
param instanceMemoryMB int
param maximumInstanceCount int
param scalerReadsCounts bool
param supervisorSchedule string
param purgeSchedule string
param orderRetentionDays int
param purgeLagHoursMax int
param telemetryShare string
param operatorMail string
@secure()
param operatorWebhooks string
param queueDepthMax int
param overdueMinutesMax int
param logRetentionDays int
param dailyQuotaGb int
param auditStateStore bool

var abbreviations = loadJsonContent('../abbreviations.json')
var packageContainer = 'packages'
var busSku = vnetEnabled ? 'Premium' : serviceBusSku
var warm = filter([
  { name: 'function:submission', instanceCount: alwaysReadySubmission }
  { name: 'function:scheduler', instanceCount: alwaysReadyScheduler }
], entry => entry.instanceCount > 0)

module monitoring 'monitoring.bicep' = {
  name: 'monitoring'
  params: {
    workspaceName: '${abbreviations.logAnalytics}${suffix}'
    componentName: '${abbreviations.applicationInsights}${suffix}'
    location: location
    tags: tags
    retentionDays: logRetentionDays
    dailyQuotaGb: dailyQuotaGb
  }
}

module identity 'identity.bicep' = {
  name: 'identity'
  params: {
    name: '${abbreviations.managedIdentity}${suffix}'
    location: location
    tags: tags
  }
}

module host 'storage-account.bicep' = {
  name: 'host-storage'
  params: {
    name: '${abbreviations.storageHost}${suffix}'
    location: location
    tags: tags
    replication: stateReplication
    publicAccess: !vnetEnabled
    containers: [
      packageContainer
    ]
  }
}

module state 'storage-account.bicep' = {
  name: 'state-store'
  params: {
    name: '${abbreviations.storageState}${suffix}'
    location: location
    tags: tags
    replication: stateReplication
    publicAccess: !vnetEnabled
    tables: [
      tableName
    ]
  }
}

module secrets 'secrets.bicep' = {
  name: 'secrets'
  params: {
    vaultName: '${abbreviations.keyVault}${suffix}'
    location: location
    tags: tags
    publicAccess: !vnetEnabled
    settingsInVault: settingsInVault
    vaultUri: keyVaultUri
    appPrincipalId: identity.outputs.principalId
    operatorPrincipalId: operatorPrincipalId
    operatorPrincipalType: operatorPrincipalType
  }
}

module messaging 'messaging.bicep' = {
  name: 'messaging'
  params: {
    name: '${abbreviations.serviceBusNamespace}${suffix}'
    location: location
    tags: tags
    sku: busSku
    messagingUnits: messagingUnits
    publicAccess: !vnetEnabled
    applications: applications
  }
}

module network 'private-access.bicep' = if (vnetEnabled) {
  name: 'private-access'
  params: {
    networkName: '${abbreviations.virtualNetwork}${suffix}'
    securityGroupName: '${abbreviations.networkSecurityGroup}${suffix}'
    endpointPrefix: abbreviations.privateEndpoint
    location: location
    tags: tags
    octets: networkOctets
    namespaceId: messaging.outputs.id
    hostAccountId: host.outputs.id
    stateAccountId: state.outputs.id
    vaultId: secrets.outputs.vaultId
  }
}

module appAccess '../access/app-access.bicep' = {
  name: 'app-access'
  params: {
    principalId: identity.outputs.principalId
    namespaceName: messaging.outputs.name
    hostAccountName: host.outputs.name
    stateAccountName: state.outputs.name
    componentName: monitoring.outputs.componentName
    responseQueues: messaging.outputs.responseQueues
    ownOrdersQueues: messaging.outputs.ownOrdersQueues
    scalerReadsCounts: scalerReadsCounts
  }
}

module operatorAccess '../access/operator-access.bicep' = if (principalsGivenTwice == 0 && !empty(operatorPrincipalId)) {
  name: 'operator-access'
  params: {
    principalId: operatorPrincipalId
    principalType: operatorPrincipalType
    namespaceName: messaging.outputs.name
    stateAccountName: state.outputs.name
    tableName: tableName
    ownOrdersQueues: messaging.outputs.ownOrdersQueues
    readsQueues: operatorReadsQueues
  }
}

module app 'function-app.bicep' = {
  name: 'function-app'
  params: {
    name: '${abbreviations.functionApp}${suffix}'
    planName: '${abbreviations.plan}${suffix}'
    location: location
    tags: tags
    identityId: identity.outputs.id
    identityClientId: identity.outputs.clientId
    hostBlobEndpoint: host.outputs.blobEndpoint
    packageContainer: packageContainer
    stateTableEndpoint: state.outputs.tableEndpoint
    tableName: tableName
    namespaceHostName: messaging.outputs.hostName
    telemetryConnectionString: monitoring.outputs.connectionString
    supervisorSchedule: supervisorSchedule
    purgeSchedule: purgeSchedule
    orderRetentionDays: orderRetentionDays
    telemetryShare: telemetryShare
    vaultReferences: secrets.outputs.settings
    businessSettings: businessSettings
    callbackUrl: callbackUrl
    boundApplications: messaging.outputs.boundApplications
    alwaysReady: warm
    instanceMemoryMB: instanceMemoryMB
    maximumInstanceCount: maximumInstanceCount
    subnetId: vnetEnabled ? network!.outputs.functionsSubnetId : ''
  }
  dependsOn: [
    appAccess
  ]
}

module operations '../operations/operations.bicep' = {
  name: 'operations'
  params: {
    actionGroupName: '${abbreviations.actionGroup}${suffix}'
    metricAlertPrefix: abbreviations.metricAlert
    queryAlertPrefix: abbreviations.queryAlert
    location: location
    tags: tags
    workspaceId: monitoring.outputs.workspaceId
    namespaceId: messaging.outputs.id
    namespaceName: messaging.outputs.name
    stateAccountId: state.outputs.id
    stateAccountName: state.outputs.name
    responseQueues: messaging.outputs.responseQueues
    ownOrdersQueues: messaging.outputs.ownOrdersQueues
    mailAddresses: empty(operatorMail) ? [] : split(replace(operatorMail, ' ', ''), ',')
    webhookAddresses: operatorWebhooks
    queueDepthMax: queueDepthMax
    overdueMinutesMax: overdueMinutesMax
    purgeLagHoursMax: purgeLagHoursMax
    auditStateStore: auditStateStore
  }
}

output appName string = app.outputs.name
output namespaceHostName string = messaging.outputs.hostName
output tableEndpoint string = state.outputs.tableEndpoint
output identityPrincipalId string = identity.outputs.principalId
output vaultName string = secrets.outputs.vaultName
output responseQueues array = messaging.outputs.responseQueues
