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

@description('Applications: name; bound where they have queues of orders of their own.')
param applications array

param workspaceId string

var list = loadJsonContent('../queues.json')
var bound = filter(applications, application => application.?bound ?? false)
var boundNames = [for application in bound: application.name]

// Both lanes, also if nobody may send to one of them: each has a function.
var ownOrders = [for application in boundNames: '${list.ownOrdersPrefix}${application}']
var ownUrgentOrders = [for queue in ownOrders: '${queue}-urgent']
var ownOrdersNames = concat(ownOrders, ownUrgentOrders)
var ownQueues = [for queue in ownOrdersNames: { name: queue, kind: 'incoming' }]
var responses = [for application in applications: { name: '${list.responsePrefix}${application.name}', kind: 'response' }]
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

output id string = namespace.id
output name string = namespace.name
output hostName string = '${namespace.name}.servicebus.windows.net'
output queueNames array = concat([list.deadLetterQueue], names)
output responseQueues array = [for queue in responses: queue.name]
output ownOrdersQueues array = ownOrdersNames

@description('Names of the applications with queues of their own, for SAS_APPLICATIONS.')
output boundApplications string = join(boundNames, ',')
