// The functions, on Flex Consumption: every Service Bus and timer function scales into instances of its own.

param name string
param planName string
param location string
param tags object

param identityId string
param identityClientId string

param hostAccountName string

@description('Where the package is kept: the host account\'s blob endpoint and a container.')
param hostBlobEndpoint string
param packageContainer string

param stateTableEndpoint string
param tableName string
param namespaceHostName string
param telemetryConnectionString string

param supervisorSchedule string
param purgeSchedule string
param orderRetentionDays int
param telemetryShare string

@secure()
@description('Settings of the business: ORDERS_... of the sample, or an adopter\'s own.')
param businessSettings object

@description('Names of settings whose values are secrets, and where: the address of the vault, with a slash at its end.')
param secretNames array
param vaultUri string

@description('Public address of the callback endpoint; empty for the app\'s own.')
param callbackUrl string

@description('Applications with queues of orders of their own, separated by commas; empty for none.')
param boundApplications string

@description('Instances kept warm, by function: name and instanceCount.')
param alwaysReady array

param instanceMemoryMB int
param maximumInstanceCount int
param siteUpdateStrategy string

@description('Subnet delegated to Microsoft.App/environments; empty without a virtual network.')
param subnetId string

param workspaceId string

var list = loadJsonContent('../queues.json')

var business = [for item in items(businessSettings): {
  name: item.key
  value: item.value
}]

// The platform replaces a reference by the secret. Secrets have no underscores: SAS_CALLBACK_KEY is sas-callback-key.
var vaultReferences = [for secret in secretNames: {
  name: secret
  value: '@Microsoft.KeyVault(SecretUri=${vaultUri}secrets/${toLower(replace(secret, '_', '-'))})'
}]

var callbackAddress = empty(callbackUrl) ? 'https://${name}.azurewebsites.net/api/callbacks' : callbackUrl

// AzureWebJobsStorage has the name of the account beside the address of its blobs, because the address alone may not
// be read in time at a start (azure-functions-host 11787). For blobs the address counts. From the name the host
// derives its tables too; it may not use them, logs one warning, and writes no diagnostic events.
var settings = [
  { name: 'FUNCTIONS_REQUEST_BODY_SIZE_LIMIT', value: '2097152' } // the host refuses a longer body before the worker
  { name: 'AzureWebJobsStorage__accountName', value: hostAccountName }
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

resource plan 'Microsoft.Web/serverfarms@2025-05-01' = {
  name: planName
  location: location
  tags: tags
  kind: 'functionapp'
  sku: { name: 'FC1', tier: 'FlexConsumption' }
  properties: {
    reserved: true
  }
}

resource app 'Microsoft.Web/sites@2025-05-01' = {
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
        triggers: { http: { perInstanceConcurrency: 16 } } // as maxConcurrentRequests in host.json
      }
      runtime: { name: 'python', version: '3.13' }
      siteUpdateStrategy: { type: siteUpdateStrategy }
    }
    siteConfig: {
      minTlsVersion: '1.2'
      scmMinTlsVersion: '1.2'
      http20Enabled: true
      appSettings: concat(settings, vaultReferences, list.settings, business)
    }
  }
}

// Deployments come with an identity; user names and passwords are off.
resource noPasswords 'Microsoft.Web/sites/basicPublishingCredentialsPolicies@2025-05-01' = [for protocol in ['ftp', 'scm']: {
  parent: app
  name: protocol
  properties: {
    allow: false
  }
}]

// Figures only: what the app logs goes to Application Insights, and FunctionAppLogs would be a second copy.
resource diagnostics 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  scope: app
  name: 'to-log-analytics'
  properties: {
    workspaceId: workspaceId
    metrics: [{ category: 'AllMetrics', enabled: true }]
  }
}

output name string = app.name
