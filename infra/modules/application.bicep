// One application: its response queue, the right to send orders, and the right to read its own answers only.

param namespaceName string
param deadLetterQueue string

@description('Its name: lower-case letters, digits and hyphens. Its queue is the response prefix and this.')
@minLength(1)
@maxLength(40)
param application string

@description('Object id of its managed identity or service principal; empty if it is granted its rights elsewhere.')
param principalId string

@description('Whether it may send urgent orders as well.')
param urgent bool

var list = loadJsonContent('../queues.json')
var roles = loadJsonContent('../roles.json')
var queueName = '${list.responsePrefix}${application}'

resource namespace 'Microsoft.ServiceBus/namespaces@2024-01-01' existing = {
  name: namespaceName
}

resource responses 'Microsoft.ServiceBus/namespaces/queues@2024-01-01' = {
  parent: namespace
  name: queueName
  properties: union(list.kinds.response.properties, {
    forwardDeadLetteredMessagesTo: deadLetterQueue
  })
}

module sends '../access/queue-roles.bicep' = if (!empty(principalId)) {
  name: 'sends-${application}'
  params: {
    namespaceName: namespaceName
    queueNames: urgent ? list.access.urgentApplicationSends : list.access.applicationSends
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleId: roles.serviceBusDataSender.id
    reason: 'Application ${application} sends orders.'
  }
}

module receives '../access/queue-roles.bicep' = if (!empty(principalId)) {
  name: 'receives-${application}'
  params: {
    namespaceName: namespaceName
    queueNames: [
      responses.name
    ]
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleId: roles.serviceBusDataReceiver.id
    reason: 'Application ${application} reads its own answers, and nobody else\'s.'
  }
}

output responseQueue string = responses.name
