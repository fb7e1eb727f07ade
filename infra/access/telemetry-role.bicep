// One role for one identity on Application Insights.

param componentName string

@minLength(36)
@maxLength(36)
param principalId string

@minLength(36)
@maxLength(36)
param roleId string

@description('Why it is granted; stored with the assignment.')
@minLength(10)
param reason string

resource component 'Microsoft.Insights/components@2020-02-02' existing = {
  name: componentName
}

resource assignment 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  scope: component
  name: guid(component.id, principalId, roleId)
  properties: {
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roleId)
    description: reason
  }
}
