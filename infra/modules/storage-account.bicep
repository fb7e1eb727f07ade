// A storage account without keys. Used twice: for the Functions host (blobs) and for the state store (a table),
// so that the right to the host's blobs is no right to the orders, and each is replicated as it needs.

@minLength(3)
@maxLength(24)
param name string
param location string
param tags object

@description('Zone- or geo-redundant: the pattern asks for a state store that is replicated.')
@allowed([
  'Standard_ZRS'
  'Standard_GRS'
  'Standard_RAGRS'
  'Standard_GZRS'
  'Standard_RAGZRS'
])
param replication string

@description('False: reached through private endpoints only.')
param publicAccess bool

param containers array = []
param tables array = []

resource account 'Microsoft.Storage/storageAccounts@2025-06-01' = {
  name: name
  location: location
  tags: tags
  kind: 'StorageV2'
  sku: {
    name: replication
  }
  properties: {
    allowSharedKeyAccess: false
    defaultToOAuthAuthentication: true
    allowBlobPublicAccess: false
    allowCrossTenantReplication: false
    minimumTlsVersion: 'TLS1_2'
    supportsHttpsTrafficOnly: true
    publicNetworkAccess: publicAccess ? 'Enabled' : 'Disabled'
    networkAcls: {
      bypass: 'None'
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

// Tables have no soft delete: what guards them is replication and least privilege.
resource tableService 'Microsoft.Storage/storageAccounts/tableServices@2025-06-01' = {
  parent: account
  name: 'default'
}

resource accountTables 'Microsoft.Storage/storageAccounts/tableServices/tables@2025-06-01' = [for table in tables: {
  parent: tableService
  name: table
}]

output id string = account.id
output name string = account.name
output blobEndpoint string = account.properties.primaryEndpoints.blob
output tableEndpoint string = account.properties.primaryEndpoints.table
