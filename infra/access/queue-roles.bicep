// One role for one identity on the named queues, each assignment on its single queue.

param namespaceName string

@minLength(1)
param queueNames array

@description('What stands for the principal in names.')
param principalKey string

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

resource namespace 'Microsoft.ServiceBus/namespaces@2024-01-01' existing = {
  name: namespaceName
}

resource queues 'Microsoft.ServiceBus/namespaces/queues@2024-01-01' existing = [for queueName in queueNames: {
  parent: namespace
  name: queueName
}]

resource assignments 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for (queueName, index) in queueNames: {
  scope: queues[index]
  name: guid(namespace.id, queueName, principalKey, roleId)
  properties: {
    principalId: principalId
    principalType: principalType
    roleDefinitionId: subscriptionResourceId('Microsoft.Authorization/roleDefinitions', roleId)
    description: 'sas: ${reason}'
  }
}]

output names array = [for (queueName, index) in queueNames: assignments[index].name]
