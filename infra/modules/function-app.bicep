// The functions, on Flex Consumption: every Service Bus and timer function scales into instances of its own.

param name string

param planName string
param location string
param tags object

param identityId string
param identityClientId string

@description('Where the package is kept: the host account\'s blob endpoint and a container.')
param hostBlobEndpoint string
param packageContainer string

param stateTableEndpoint string
param tableName string
param namespaceHostName string
param telemetryConnectionString string

@description('When the supervisor sweeps: NCRONTAB of six fields.')
@minLength(11)
param supervisorSchedule string

@description('When finished orders are removed: NCRONTAB of six fields.')
@minLength(11)
param purgeSchedule string

@description('Age in days at which they are removed.')
param orderRetentionDays int

@description('Share of traces that the app exports; failures always are.')
param telemetryShare string

@secure()
@description('Settings of the business: ORDERS_... of the sample, or an adopter\'s own.')
param businessSettings object

@description('Secret settings: name, and a reference that the platform replaces by the secret.')
param vaultReferences array

@description('Public address of the callback endpoint; empty for the app\'s own.')
param callbackUrl string

@description('Applications with queues of orders of their own, separated by commas; empty for none.')
param boundApplications string

@description('Instances kept warm, by function: name and instanceCount.')
param alwaysReady array

@allowed([
  512
  2048
  4096
])
param instanceMemoryMB int

@minValue(40)
@maxValue(1000)
param maximumInstanceCount int

@description('Subnet delegated to Microsoft.App/environments; empty without a virtual network.')
param subnetId string

var list = loadJsonContent('../queues.json')

var business = [for item in items(businessSettings): {
  name: item.key
  value: item.value
}]

var callbackAddress = empty(callbackUrl) ? 'https://${name}.azurewebsites.net/api/callbacks' : callbackUrl

var settings = [
  { name: 'AzureWebJobsStorage__blobServiceUri', value: hostBlobEndpoint }
  { name: 'AzureWebJobsStorage__credential', value: 'managedidentity' }
  { name: 'AzureWebJobsStorage__clientId', value: identityClientId }
  { name: 'ServiceBus__fullyQualifiedNamespace', value: namespaceHostName }
  { name: 'ServiceBus__credential', value: 'managedidentity' }
  { name: 'ServiceBus__clientId', value: identityClientId }
  { name: 'SAS_TABLES__endpoint', value: stateTableEndpoint }
  { name: 'SAS_TABLES__clientId', value: identityClientId }
  { name: 'SAS_TABLE', value: tableName }
  { name: 'SAS_SUPERVISOR_SCHEDULE', value: supervisorSchedule }
  { name: 'SAS_PURGE_SCHEDULE', value: purgeSchedule }
  { name: 'SAS_RETENTION_DAYS', value: string(orderRetentionDays) }
  { name: 'SAS_CALLBACK_URL', value: callbackAddress }
  { name: 'SAS_APPLICATIONS', value: boundApplications }
  { name: 'SAS_TELEMETRY', value: 'azuremonitor' }
  { name: 'SAS_TELEMETRY_SHARE', value: telemetryShare }
  { name: 'PYTHON_ENABLE_OPENTELEMETRY', value: 'true' }
  { name: 'APPLICATIONINSIGHTS_CONNECTION_STRING', value: telemetryConnectionString }
  { name: 'APPLICATIONINSIGHTS_AUTHENTICATION_STRING', value: 'ClientId=${identityClientId};Authorization=AAD' }
]

resource plan 'Microsoft.Web/serverfarms@2024-11-01' = {
  name: planName
  location: location
  tags: tags
  kind: 'functionapp'
  sku: {
    name: 'FC1'
    tier: 'FlexConsumption'
  }
  properties: {
    reserved: true
  }
}

resource app 'Microsoft.Web/sites@2024-11-01' = {
  name: name
  location: location
  tags: union(tags, {
    'azd-service-name': 'orders' // the service of azure.yaml that is deployed to it
  })
  kind: 'functionapp,linux'
  identity: {
    type: 'UserAssigned'
    userAssignedIdentities: {
      '${identityId}': {}
    }
  }
  properties: {
    serverFarmId: plan.id
    httpsOnly: true
    keyVaultReferenceIdentity: identityId
    virtualNetworkSubnetId: empty(subnetId) ? null : subnetId
    functionAppConfig: {
      deployment: {
        storage: {
          type: 'blobContainer'
          value: '${hostBlobEndpoint}${packageContainer}'
          authentication: {
            type: 'UserAssignedIdentity'
            userAssignedIdentityResourceId: identityId
          }
        }
      }
      scaleAndConcurrency: {
        alwaysReady: alwaysReady
        instanceMemoryMB: instanceMemoryMB
        maximumInstanceCount: maximumInstanceCount
      }
      runtime: {
        name: 'python'
        version: '3.13'
      }
    }
    siteConfig: {
      minTlsVersion: '1.2'
      scmMinTlsVersion: '1.2'
      ftpsState: 'Disabled'
      http20Enabled: true
      appSettings: concat(settings, vaultReferences, list.settings, business)
    }
  }
}

// Deployments come with an identity; user names and passwords are off.
resource noFtpPasswords 'Microsoft.Web/sites/basicPublishingCredentialsPolicies@2024-11-01' = {
  parent: app
  name: 'ftp'
  properties: {
    allow: false
  }
}

resource noDeploymentPasswords 'Microsoft.Web/sites/basicPublishingCredentialsPolicies@2024-11-01' = {
  parent: app
  name: 'scm'
  properties: {
    allow: false
  }
}

output id string = app.id
output name string = app.name
