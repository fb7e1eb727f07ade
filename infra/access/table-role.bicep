// One role for one identity on one table.

param accountName string
param tableName string

@minLength(36)
@maxLength(36)
param principalId string

@allowed([
  'ServicePrincipal'
  'User'
  'Group'
])
param principalType string

@minLength(36)
@maxLength(36)
param roleId string

@description('Why it is granted; stored with the assignment.')
@minLength(10)
param reason string

resource account 'Microsoft.Storage/storageAccounts@2025-06-01' existing = {
  name: accountName
}

resource tableService 'Microsoft.Storage/storageAccounts/tableServices@2025-06-01' existing = {
  parent: account
  name: 'default'
}

resource table 'Microsoft.Storage/storageAccounts/tableServices/tables@2025-06-01' existing = {
  parent: tableService
  name: tableName
}

resource assignment 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  scope: table
  name: guid(table.id, principalId, roleId)
  properties: {
    principalId: principalId
    principalType: principalType
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roleId)
    description: reason
  }
}
