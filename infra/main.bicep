// Everything that the Scheduler Agent Supervisor needs in Azure, in one resource group that exists already: who deploys
// has rights on the group only. What only an owner may do is in `sas azd owner`.

targetScope = 'resourceGroup'

@description('Name of the environment; part of every name.')
@minLength(1)
@maxLength(40)
param environmentName string

@description('Region, one with Flex Consumption. Looked up on 22 November 2026; `az functionapp list-flexconsumption-locations` has them all.')
@allowed([
  'australiaeast', 'australiasoutheast', 'brazilsouth', 'canadacentral', 'centralindia'
  'centralus', 'eastasia', 'eastus', 'eastus2', 'francecentral', 'germanywestcentral'
  'italynorth', 'japaneast', 'koreacentral', 'northcentralus', 'northeurope', 'norwayeast'
  'southafricanorth', 'southcentralus', 'southeastasia', 'southindia', 'spaincentral'
  'swedencentral', 'uaenorth', 'uksouth', 'ukwest', 'westcentralus', 'westeurope', 'westus'
  'westus2', 'westus3'
])
@metadata({
  azd: { type: 'location' }
})
param location string

@description('Tags of every resource, beside azd-env-name.')
param tags object = {}

@description('Object id of the operators, best a group: they read orders, alerts and rejected messages, and send commands. Empty: nobody. The person who deploys is not an operator automatically.')
param operatorPrincipalId string = ''

@allowed([
  'User'
  'Group'
  'ServicePrincipal'
])
param operatorPrincipalType string = 'User'

@description('Operators may also receive from the working queues: sas messages, sas show and the desk look into them. It lets them remove messages too.')
param operatorReadsQueues bool = true

@description('Object id of the identity that deploys from GitHub: an operator too, because it sends an order after a deployment and stores exports. Empty: none.')
param deployerPrincipalId string = ''

@description('Applications that send orders: name, and principalId (empty to grant rights elsewhere). Each gets a response queue; with bound: true also queues of orders of its own.')
@minLength(1)
@maxLength(200)
param applications array

@secure()
@description('Settings of the business, as an object of strings. Secure: no value shows in the history of deployments. A key belongs into settingsInVault all the same.')
param businessSettings object

@description('Names of settings whose values are secrets in a Key Vault, with commas between, such as SAS_CALLBACK_KEY,SAS_PAYLOAD_KEYS. The app gets references. Empty: none, and no vault.')
@maxLength(2000)
param settingsInVault string = ''

@description('URI of a vault of yours that holds them, without a slash at its end; empty: one is made here.')
@maxLength(200)
param keyVaultUri string = ''

@description('Public address of the callback endpoint; empty for the app\'s own.')
param callbackUrl string = ''

@description('Standard carries most loads. Premium is used by itself where vnetEnabled asks for private endpoints.')
@allowed([
  'Standard'
  'Premium'
])
param serviceBusSku string = 'Standard'

@allowed([
  1
  2
  4
  8
  16
])
param messagingUnits int = 1

@description('Private endpoints only: no public way to Service Bus, the host\'s blobs or the orders.')
param vnetEnabled bool = false

@minLength(3)
@maxLength(7)
param networkOctets string = '10.20'

@description('Replication of the state store and of the host\'s account.')
@allowed([
  'Standard_ZRS'
  'Standard_GRS'
  'Standard_RAGRS'
  'Standard_GZRS'
  'Standard_RAGZRS'
])
param stateReplication string = 'Standard_ZRS'

@description('The table of orders: letters and digits.')
@minLength(3)
@maxLength(63)
param tableName string = 'orders'

@description('Instances that are kept running: name and instanceCount. A name is function:NAME, such as function:submission (orders) or function:scheduler, or http (callbacks). None saves money; one of each saves a lone order minutes.')
param alwaysReady array = []

@description('What a deployment does to running instances. Recreate stops all at once: a pause, one version at a time. RollingUpdate (a preview) replaces them in turn: no pause, two versions for minutes.')
@allowed([
  'Recreate'
  'RollingUpdate'
])
param siteUpdateStrategy string = 'Recreate'

@allowed([
  512
  2048
  4096
])
param instanceMemoryMB int = 2048

@minValue(40)
@maxValue(1000)
param maximumInstanceCount int = 40

@description('When the supervisor sweeps: NCRONTAB of six fields.')
@minLength(11)
param supervisorSchedule string = '*/10 * * * * *'

@description('When finished orders are removed: NCRONTAB of six fields. More runs remove more orders a day (docs/scale.md).')
@minLength(11)
param purgeSchedule string = '0 5/10 * * * *'

@description('Age in days at which finished orders are removed. Longer than any message can live: 14 days.')
@minValue(15)
@maxValue(36500)
param orderRetentionDays int = 30

@description('Hours that a finished order may be kept beyond orderRetentionDays before an alert.')
@minValue(1)
@maxValue(1000)
param purgeLagHoursMax int = 48

@description('Share of traces that the app exports, over 0 to 1; failures always are. Lower it first to save on logs.')
@minLength(1)
@maxLength(6)
param telemetryShare string = '1'

@description('Mail addresses that get alerts, with commas between. Empty: none.')
@maxLength(1000)
param operatorMail string = ''

@secure()
@description('https addresses that alerts are posted to, in the common alert schema, with commas between: PagerDuty, a workflow that posts to Teams. Secure, because such an address is often a secret.')
@maxLength(4000)
param operatorWebhooks string = ''

@description('Messages that may wait in a queue before an alert.')
@minValue(1)
param queueDepthMax int = 1000

@description('Minutes that the oldest message of a queue of orders may wait before an alert.')
@minValue(1)
@maxValue(1440)
param ordersWaitingMinutesMax int = 10

@description('Minutes that a due row may be overdue before an alert.')
@minValue(1)
@maxValue(1440)
param overdueMinutesMax int = 5

@description('Days that logs are kept.')
@minValue(30)
@maxValue(730)
param logRetentionDays int = 30

@description('Orders expected on a busy day. The daily cap of the logs follows from it: 1 GB, and 40 KB an order (docs/cost.md).')
@minValue(1)
@maxValue(10000000)
param ordersPerDay int = 100000

@description('Daily cap of the logs in GB in place of that; -1 for none.')
@minValue(-1)
param dailyQuotaGb int = 0

@description('Log every request to the state store and to the host\'s blobs: one log line each.')
param auditStorage bool = false

@description('A budget for the group, with a mail at 80 % and when a month is foreseen to exceed it: amount, in the currency of the bill, and from, its first month such as 2026-12. Azure takes the present month or a later one, and no other ever after. Empty: none.')
param monthlyBudget object = {}

var suffix = toLower(uniqueString(subscription().id, environmentName, location))
var allTags = union(tags, {
  'azd-env-name': environmentName
})

// Names and ids that modules share are computed here, not taken from outputs: what-if does not look into a module whose
// names or number of resources are known only when another one is deployed.
var namespaceName = 'sb-${suffix}'
var hostAccountName = 'sthost${suffix}'
var stateAccountName = 'ststate${suffix}'
var vaultName = 'kv-${suffix}'
var namespaceId = resourceId('Microsoft.ServiceBus/namespaces', namespaceName)
var stateAccountId = resourceId('Microsoft.Storage/storageAccounts', stateAccountName)
var list = loadJsonContent('queues.json')
var responseQueues = [for application in applications: '${list.responsePrefix}${application.name}']
var bound = filter(applications, application => application.?bound ?? false)
var boundNames = [for application in bound: application.name]
// Both lanes, also if nobody may send to one of them: each has a function.
var ownOrders = [for application in boundNames: '${list.ownOrdersPrefix}${application}']
var ownUrgentOrders = [for queue in ownOrders: '${queue}-urgent']
var ownOrdersQueues = concat(ownOrders, ownUrgentOrders)

var packageContainer = 'packages'
var exportsContainer = 'exports'
var secretNames = empty(settingsInVault) ? [] : split(replace(settingsInVault, ' ', ''), ',')
var needsVault = !empty(secretNames) && empty(keyVaultUri)
var allRequests = [
  'StorageRead'
  'StorageWrite'
  'StorageDelete'
]

// Azure takes one assignment of a role on a queue for a principal. Two deployments would write the same one.
var applicationPrincipals = [for application in applications: application.principalId]
var principals = filter(concat([operatorPrincipalId, deployerPrincipalId], applicationPrincipals), each => each != '')

resource workspace 'Microsoft.OperationalInsights/workspaces@2025-02-01' = {
  name: 'log-${suffix}'
  location: location
  tags: allTags
  properties: {
    sku: { name: 'PerGB2018' }
    retentionInDays: logRetentionDays
    workspaceCapping: { dailyQuotaGb: dailyQuotaGb == 0 ? 1 + ordersPerDay / 25000 : dailyQuotaGb }
    features: { disableLocalAuth: true, enableLogAccessUsingOnlyResourcePermissions: true }
  }
}

// Its key is switched off: telemetry is sent as the app's identity.
resource component 'Microsoft.Insights/components@2020-02-02' = {
  name: 'appi-${suffix}'
  location: location
  tags: allTags
  kind: 'web'
  properties: {
    Application_Type: 'web'
    WorkspaceResourceId: workspace.id
    DisableLocalAuth: true
  }
}

// The identity that the functions run as. User-assigned, so that its rights exist before the app does.
resource identity 'Microsoft.ManagedIdentity/userAssignedIdentities@2024-11-30' = {
  name: 'id-${suffix}'
  location: location
  tags: allTags
}

module host 'modules/storage-account.bicep' = {
  name: 'host-storage'
  params: {
    name: hostAccountName
    location: location
    tags: allTags
    replication: stateReplication
    publicAccess: !vnetEnabled
    containers: [
      packageContainer
      exportsContainer
    ]
    expiringContainer: exportsContainer
    workspaceId: workspace.id
    loggedRequests: auditStorage ? allRequests : ['StorageDelete']
  }
}

module state 'modules/storage-account.bicep' = {
  name: 'state-store'
  params: {
    name: stateAccountName
    location: location
    tags: allTags
    replication: stateReplication
    publicAccess: !vnetEnabled
    tables: [tableName]
    workspaceId: workspace.id
    loggedRequests: auditStorage ? allRequests : []
  }
}

module vault 'modules/key-vault.bicep' = if (needsVault) {
  name: 'vault'
  params: {
    name: vaultName
    location: location
    tags: allTags
    publicAccess: !vnetEnabled
    workspaceId: workspace.id
  }
}

module messaging 'modules/messaging.bicep' = {
  name: 'messaging'
  params: {
    name: namespaceName
    location: location
    tags: allTags
    sku: vnetEnabled ? 'Premium' : serviceBusSku
    messagingUnits: messagingUnits
    publicAccess: !vnetEnabled
    responseQueues: responseQueues
    ownOrdersQueues: ownOrdersQueues
    workspaceId: workspace.id
  }
}

module network 'modules/network.bicep' = if (vnetEnabled) {
  name: 'network'
  params: {
    name: 'vnet-${suffix}'
    securityGroupName: 'nsg-${suffix}'
    location: location
    tags: allTags
    octets: networkOctets
    namespaceId: namespaceId
    hostAccountId: resourceId('Microsoft.Storage/storageAccounts', hostAccountName)
    stateAccountId: stateAccountId
    vaultId: needsVault ? resourceId('Microsoft.KeyVault/vaults', vaultName) : ''
  }
  dependsOn: [messaging, host, state, vault]
}

module access 'access/access.bicep' = {
  name: 'access'
  params: {
    appIdentityId: identity.id
    appPrincipalId: identity.properties.principalId
    operatorPrincipalId: operatorPrincipalId
    operatorPrincipalType: operatorPrincipalType
    operatorReadsQueues: operatorReadsQueues
    deployerPrincipalId: deployerPrincipalId
    applications: applications
    principalsGivenTwice: length(principals) - length(union(principals, []))
    namespaceName: namespaceName
    hostAccountName: hostAccountName
    exportsContainer: exportsContainer
    stateAccountName: stateAccountName
    tableName: tableName
    componentName: component.name
    responseQueues: responseQueues
    ownOrdersQueues: ownOrdersQueues
  }
  dependsOn: [messaging, host, state]
}

module app 'modules/function-app.bicep' = {
  name: 'function-app'
  params: {
    name: 'func-${suffix}'
    planName: 'plan-${suffix}'
    location: location
    tags: allTags
    identityId: identity.id
    identityClientId: identity.properties.clientId
    hostAccountName: hostAccountName
    hostBlobEndpoint: host.outputs.blobEndpoint
    packageContainer: packageContainer
    stateTableEndpoint: state.outputs.tableEndpoint
    tableName: tableName
    namespaceHostName: messaging.outputs.hostName
    telemetryConnectionString: component.properties.ConnectionString
    supervisorSchedule: supervisorSchedule
    purgeSchedule: purgeSchedule
    orderRetentionDays: orderRetentionDays
    telemetryShare: telemetryShare
    secretNames: secretNames
    vaultUri: needsVault ? vault!.outputs.uri : '${keyVaultUri}/'
    businessSettings: businessSettings
    callbackUrl: callbackUrl
    boundApplications: join(boundNames, ',')
    alwaysReady: alwaysReady
    siteUpdateStrategy: siteUpdateStrategy
    instanceMemoryMB: instanceMemoryMB
    maximumInstanceCount: maximumInstanceCount
    subnetId: vnetEnabled ? network!.outputs.functionsSubnetId : ''
    workspaceId: workspace.id
  }
  dependsOn: [access]
}

module alerts 'operations/alerts.bicep' = {
  name: 'alerts'
  params: {
    actionGroupName: 'ag-${suffix}'
    location: location
    tags: allTags
    mailAddresses: empty(operatorMail) ? [] : split(replace(operatorMail, ' ', ''), ',')
    webhookAddresses: operatorWebhooks
    workspaceId: workspace.id
    namespaceId: namespaceId
    stateAccountId: stateAccountId
    responseQueues: responseQueues
    ownOrdersQueues: ownOrdersQueues
    queueDepthMax: queueDepthMax
    ordersWaitingMinutesMax: ordersWaitingMinutesMax
    overdueMinutesMax: overdueMinutesMax
    purgeLagHoursMax: purgeLagHoursMax
    monthlyBudget: monthlyBudget
  }
  dependsOn: [messaging, state]
}

module workbook 'operations/workbook.bicep' = {
  name: 'workbook'
  params: {
    location: location
    tags: allTags
    workspaceId: workspace.id
  }
}

output AZURE_LOCATION string = location
output AZURE_RESOURCE_GROUP string = resourceGroup().name
output SERVICE_ORDERS_NAME string = app.outputs.name
output ServiceBus__fullyQualifiedNamespace string = messaging.outputs.hostName
output SAS_TABLES__endpoint string = state.outputs.tableEndpoint
output SAS_HOST_STORAGE_NAME string = hostAccountName
output SAS_IDENTITY_PRINCIPAL_ID string = identity.properties.principalId
output SAS_KEY_VAULT_NAME string = needsVault ? vaultName : ''
output SAS_RESPONSE_QUEUES array = responseQueues

// What a deployment gives, so that the hook after it removes what an earlier one gave and this one does not.
// Names, which are GUIDs: the hook reads them in an environment variable, and ids would be too long for one.
output SAS_QUEUES array = messaging.outputs.queueNames
output SAS_ROLE_ASSIGNMENTS array = flatten(concat(access.outputs.namesOnQueues, access.outputs.namesOfOperators, [
  access.outputs.namesOnGroup
  access.outputs.namesOfApp
]))
