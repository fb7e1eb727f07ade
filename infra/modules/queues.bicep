// Every queue of the system, from the one list. Applications' response queues are made by application.bicep.

param namespaceName string

var list = loadJsonContent('../queues.json')

resource namespace 'Microsoft.ServiceBus/namespaces@2024-01-01' existing = {
  name: namespaceName
}

// First, for the others forward to it.
resource deadLetters 'Microsoft.ServiceBus/namespaces/queues@2024-01-01' = {
  parent: namespace
  name: list.deadLetterQueue
  properties: list.kinds.deadLetters.properties
}

// One at a time: a namespace refuses changes that meet (409, conflicting operation).
@batchSize(1)
resource queues 'Microsoft.ServiceBus/namespaces/queues@2024-01-01' = [for queue in list.queues: {
  parent: namespace
  name: queue.name
  properties: union(list.kinds[queue.kind].properties, {
    forwardDeadLetteredMessagesTo: deadLetters.name
  })
}]

output deadLetterQueue string = deadLetters.name
