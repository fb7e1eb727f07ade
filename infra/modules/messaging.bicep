// Service Bus: the namespace, every queue, and each application's response queue with its rights.

param name string
param location string
param tags object
param sku string
param messagingUnits int
param publicAccess bool

@description('Applications: name and principalId; urgent and bound where they are.')
param applications array

var list = loadJsonContent('../queues.json')
var boundApplications = filter(applications, application => application.?bound ?? false)
var boundNames = [for application in boundApplications: application.name]
var ownOrders = [for name in boundNames: '${list.ownOrdersPrefix}${name}']
var ownUrgentOrders = [for queue in ownOrders: '${queue}-urgent']

module namespace 'service-bus.bicep' = {
  name: 'namespace'
  params: {
    name: name
    location: location
    tags: tags
    sku: sku
    messagingUnits: messagingUnits
    publicAccess: publicAccess
  }
}

module queues 'queues.bicep' = {
  name: 'queues'
  params: {
    namespaceName: namespace.outputs.name
  }
}

@batchSize(1)
module applicationQueues 'application.bicep' = [for application in applications: {
  name: 'application-${application.name}'
  params: {
    namespaceName: namespace.outputs.name
    deadLetterQueue: queues.outputs.deadLetterQueue
    application: application.name
    principalId: application.principalId
    urgent: application.?urgent ?? false
    bound: application.?bound ?? false
  }
}]

output id string = namespace.outputs.id
output name string = namespace.outputs.name
output hostName string = namespace.outputs.hostName

// Named from the list, for what is granted on them must be known before they exist; callers wait for this module.
output responseQueues array = [for application in applications: '${list.responsePrefix}${application.name}']
output ownOrdersQueues array = concat(ownOrders, ownUrgentOrders)

@description('Names of the applications with queues of their own, for SAS_APPLICATIONS.')
output boundApplications string = join(boundNames, ',')
