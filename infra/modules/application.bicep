// One application: its response queue, the right to send orders, and the right to read its own answers only.
// A bound one has queues of orders of its own; its response queue and its order ids belong to them (docs/security.md).

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

@description('Whether it sends its orders to queues of its own, and not to the shared one.')
param bound bool

var list = loadJsonContent('../queues.json')
var roles = loadJsonContent('../roles.json')
var ownQueueName = '${list.ownOrdersPrefix}${application}'
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

var sharedOrders = urgent ? list.access.urgentApplicationSends : list.access.applicationSends
var lanes = bound ? ['', '-urgent'] : []
var ownOrders = concat([ownQueueName], urgent ? ['${ownQueueName}-urgent'] : [])

// Both lanes, also if nobody may send to one of them: each has a function.
@batchSize(1)
resource orders 'Microsoft.ServiceBus/namespaces/queues@2024-01-01' = [for suffix in lanes: {
  parent: namespace
  name: '${ownQueueName}${suffix}'
  properties: union(list.kinds.incoming.properties, {
    forwardDeadLetteredMessagesTo: deadLetterQueue
  })
}]

module sends '../access/queue-roles.bicep' = if (!empty(principalId)) {
  name: 'sends-${application}'
  params: {
    namespaceName: namespaceName
    queueNames: bound ? ownOrders : sharedOrders
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleId: roles.serviceBusDataSender.id
    reason: 'Application ${application} sends orders.'
  }
  dependsOn: [
    orders
  ]
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
