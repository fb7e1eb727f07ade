// Everything that the Scheduler Agent Supervisor needs in Azure. Plain resources in small modules; `azd up` deploys it.

targetScope = 'subscription'

@description('Name of the environment; part of every name.')
@minLength(1)
@maxLength(40)
param environmentName string

@description('Region, one with Flex Consumption. Looked up on 22 November 2026; `az functionapp list-flexconsumption-locations` has them all.')
@allowed([
  'australiaeast'
  'australiasoutheast'
  'brazilsouth'
  'canadacentral'
  'centralindia'
  'centralus'
  'eastasia'
  'eastus'
  'eastus2'
  'francecentral'
  'germanywestcentral'
  'italynorth'
  'japaneast'
  'koreacentral'
  'northcentralus'
  'northeurope'
  'norwayeast'
  'southafricanorth'
  'southcentralus'
  'southeastasia'
  'southindia'
  'spaincentral'
  'swedencentral'
  'uaenorth'
  'uksouth'
  'ukwest'
  'westcentralus'
  'westeurope'
  'westus'
  'westus2'
  'westus3'
])
@metadata({
  azd: {
    type: 'location'
  }
})
param location string

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

@description('Instances kept warm for submission: none saves money, one saves the first order after a pause up to two minutes.')
@minValue(0)
@maxValue(20)
param alwaysReadySubmission int = 0

@description('The same for the scheduler.')
@minValue(0)
@maxValue(20)
param alwaysReadyScheduler int = 0

@allowed([
  512
  2048
  4096
])
param instanceMemoryMB int = 2048

@minValue(40)
@maxValue(1000)
param maximumInstanceCount int = 40

@description('Let the scaler of the triggers read how many messages wait: Data Owner on the queues that trigger functions. See infra/README.md.')
param scalerReadsCounts bool = false

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

@minValue(1)
param queueDepthMax int = 1000

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

@description('Log every request to the state store: one log line each.')
param auditStateStore bool = false

var abbreviations = loadJsonContent('abbreviations.json')
var tags = {
  'azd-env-name': environmentName
}

// Azure takes one assignment of a role on a queue for a principal. Two deployments would write the same one.
var applicationPrincipals = [for application in applications: application.principalId]
var principals = filter(concat([operatorPrincipalId], applicationPrincipals), each => each != '')

resource group 'Microsoft.Resources/resourceGroups@2024-11-01' = {
  name: '${abbreviations.resourceGroup}${environmentName}'
  location: location
  tags: tags
}

module platform 'modules/platform.bicep' = {
  name: 'platform'
  scope: group
  params: {
    suffix: toLower(uniqueString(subscription().id, environmentName, location))
    tags: tags
    location: location
    operatorPrincipalId: operatorPrincipalId
    operatorPrincipalType: operatorPrincipalType
    operatorReadsQueues: operatorReadsQueues
    principalsGivenTwice: length(principals) - length(union(principals, []))
    applications: applications
    businessSettings: businessSettings
    settingsInVault: settingsInVault
    keyVaultUri: keyVaultUri
    callbackUrl: callbackUrl
    serviceBusSku: serviceBusSku
    messagingUnits: messagingUnits
    vnetEnabled: vnetEnabled
    networkOctets: networkOctets
    stateReplication: stateReplication
    tableName: tableName
    alwaysReadySubmission: alwaysReadySubmission
    alwaysReadyScheduler: alwaysReadyScheduler
    instanceMemoryMB: instanceMemoryMB
    maximumInstanceCount: maximumInstanceCount
    scalerReadsCounts: scalerReadsCounts
    supervisorSchedule: supervisorSchedule
    purgeSchedule: purgeSchedule
    orderRetentionDays: orderRetentionDays
    purgeLagHoursMax: purgeLagHoursMax
    telemetryShare: telemetryShare
    operatorMail: operatorMail
    operatorWebhooks: operatorWebhooks
    queueDepthMax: queueDepthMax
    overdueMinutesMax: overdueMinutesMax
    logRetentionDays: logRetentionDays
    dailyQuotaGb: dailyQuotaGb == 0 ? 1 + ordersPerDay / 25000 : dailyQuotaGb
    auditStateStore: auditStateStore
  }
}

output AZURE_LOCATION string = location
output AZURE_RESOURCE_GROUP string = group.name
output SERVICE_ORDERS_NAME string = platform.outputs.appName
output ServiceBus__fullyQualifiedNamespace string = platform.outputs.namespaceHostName
output SAS_TABLES__endpoint string = platform.outputs.tableEndpoint
output SAS_IDENTITY_PRINCIPAL_ID string = platform.outputs.identityPrincipalId
output SAS_KEY_VAULT_NAME string = platform.outputs.vaultName
output SAS_RESPONSE_QUEUES array = platform.outputs.responseQueues
