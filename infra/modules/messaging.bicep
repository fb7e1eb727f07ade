// Service Bus: the namespace without keys, and every queue of the one list and of the applications.

@minLength(6)
@maxLength(50)
param name string
param location string
param tags object

@allowed([
  'Standard'
  'Premium'
])
param sku string

@description('Messaging units of Premium; Standard has none.')
param messagingUnits int

@description('False: reached through private endpoints only (Premium).')
param publicAccess bool

@description('Applications\' response queues.')
param responseQueues array

@description('Queues of orders of single applications.')
param ownOrdersQueues array

param workspaceId string

var list = loadJsonContent('../queues.json')
var responses = [for queue in responseQueues: { name: queue, kind: 'response' }]
var ownQueues = [for queue in ownOrdersQueues: { name: queue, kind: 'incoming' }]
var allQueues = concat(list.queues, responses, ownQueues)
var names = [for queue in allQueues: queue.name]

resource namespace 'Microsoft.ServiceBus/namespaces@2024-01-01' = {
  name: name
  location: location
  tags: tags
  sku: {
    name: sku
    tier: sku
    capacity: sku == 'Premium' ? messagingUnits : null
  }
  properties: {
    disableLocalAuth: true
    minimumTlsVersion: '1.2'
    publicNetworkAccess: publicAccess ? 'Enabled' : 'Disabled'
  }
}

// First, for the others forward to it.
resource deadLetters 'Microsoft.ServiceBus/namespaces/queues@2024-01-01' = {
  parent: namespace
  name: list.deadLetterQueue
  properties: list.kinds.deadLetters.properties
}

// One at a time: a namespace refuses changes that meet (409, conflicting operation).
@batchSize(1)
resource queues 'Microsoft.ServiceBus/namespaces/queues@2024-01-01' = [for queue in allQueues: {
  parent: namespace
  name: queue.name
  properties: union(list.kinds[queue.kind].properties, {
    forwardDeadLetteredMessagesTo: deadLetters.name
  })
}]

// Who did what to the namespace, and its figures. There is no log line for each message.
resource diagnostics 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  scope: namespace
  name: 'to-log-analytics'
  properties: {
    workspaceId: workspaceId
    logs: [{ categoryGroup: 'allLogs', enabled: true }]
    metrics: [{ category: 'AllMetrics', enabled: true }]
  }
}

output hostName string = '${namespace.name}.servicebus.windows.net'
output queueNames array = concat([list.deadLetterQueue], names)
