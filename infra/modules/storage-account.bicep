// A storage account without keys. Used twice: for the Functions host (blobs) and for the state store (a table),
// so that the right to the host's blobs is no right to the orders, and each is replicated as it needs.

@minLength(3)
@maxLength(24)
param name string
param location string
param tags object

@description('Zone- or geo-redundant: the pattern asks for a state store that is replicated.')
param replication string

@description('False: reached through private endpoints only.')
param publicAccess bool

param containers array = []
param tables array = []

@description('The one of them whose blobs are deleted after 35 days; empty: none.')
param expiringContainer string = ''

param workspaceId string

@description('Kinds of requests that are logged, a log line each: StorageRead, StorageWrite, StorageDelete.')
param loggedRequests array

resource account 'Microsoft.Storage/storageAccounts@2025-06-01' = {
  name: name
  location: location
  tags: tags
  kind: 'StorageV2'
  sku: { name: replication }
  properties: {
    allowSharedKeyAccess: false
    defaultToOAuthAuthentication: true
    allowBlobPublicAccess: false
    allowCrossTenantReplication: false
    minimumTlsVersion: 'TLS1_2'
    supportsHttpsTrafficOnly: true
    publicNetworkAccess: publicAccess ? 'Enabled' : 'Disabled'
    networkAcls: {
      bypass: empty(expiringContainer) ? 'None' : 'AzureServices' // a firewall may stop the rule that deletes
      defaultAction: publicAccess ? 'Allow' : 'Deny'
    }
  }
}

resource blobs 'Microsoft.Storage/storageAccounts/blobServices@2025-06-01' = {
  parent: account
  name: 'default'
  properties: {
    deleteRetentionPolicy: {
      enabled: true
      days: 14
    }
    containerDeleteRetentionPolicy: {
      enabled: true
      days: 14
    }
  }
}

resource blobContainers 'Microsoft.Storage/storageAccounts/blobServices/containers@2025-06-01' = [for container in containers: {
  parent: blobs
  name: container
  properties: {
    publicAccess: 'None'
  }
}]

resource expiry 'Microsoft.Storage/storageAccounts/managementPolicies@2025-06-01' = if (!empty(expiringContainer)) {
  parent: account
  name: 'default'
  properties: {
    policy: {
      rules: [
        {
          name: 'expiry'
          type: 'Lifecycle'
          definition: {
            filters: {
              blobTypes: ['blockBlob']
              prefixMatch: [
                '${expiringContainer}/'
              ]
            }
            actions: {
              baseBlob: {
                delete: {
                  daysAfterModificationGreaterThan: 35
                }
              }
            }
          }
        }
      ]
    }
  }
  dependsOn: [blobs]
}

// Tables have no soft delete: what guards them is replication and least privilege.
resource tableService 'Microsoft.Storage/storageAccounts/tableServices@2025-06-01' = {
  parent: account
  name: 'default'
}

resource accountTables 'Microsoft.Storage/storageAccounts/tableServices/tables@2025-06-01' = [for table in tables: {
  parent: tableService
  name: table
}]

var logs = [for request in loggedRequests: { category: request, enabled: true }]
var diagnostics = {
  workspaceId: workspaceId
  logs: logs
  metrics: [{ category: 'Transaction', enabled: true }]
}

resource ofBlobs 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = if (!empty(containers)) {
  scope: blobs
  name: 'to-log-analytics'
  properties: diagnostics
}

resource ofTables 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = if (!empty(tables)) {
  scope: tableService
  name: 'to-log-analytics'
  properties: diagnostics
}

output blobEndpoint string = account.properties.primaryEndpoints.blob
output tableEndpoint string = account.properties.primaryEndpoints.table
