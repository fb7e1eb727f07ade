// One role for one identity on the vault, which holds this environment's secrets and nothing else.

param vaultName string

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

resource vault 'Microsoft.KeyVault/vaults@2024-11-01' existing = {
  name: vaultName
}

resource assignment 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  scope: vault
  name: guid(vault.id, principalId, roleId)
  properties: {
    principalId: principalId
    principalType: principalType
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roleId)
    description: reason
  }
}
