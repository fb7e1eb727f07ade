// One role for one identity on one storage account.

param accountName string

@minLength(36)
@maxLength(36)
param principalId string

@minLength(36)
@maxLength(36)
param roleId string

@description('Why it is granted; stored with the assignment.')
@minLength(10)
param reason string

resource account 'Microsoft.Storage/storageAccounts@2025-06-01' existing = {
  name: accountName
}

resource assignment 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  scope: account
  name: guid(account.id, principalId, roleId)
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roleId)
    description: reason
  }
}
