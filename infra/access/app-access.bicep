// What the functions' identity may do, and nothing more. Reasons are in roles.json and on each assignment.

param principalId string
param namespaceName string
param hostAccountName string
param stateAccountName string
param componentName string

@description('Applications\' response queues: notifications are sent to them.')
param responseQueues array

@description('Queues of orders of single applications: functions are triggered by them, and put orders back.')
param ownOrdersQueues array

@description('Let the scaler of the triggers read how many messages wait. Receiver may not; Data Owner may, and may change the queue too.')
param scalerReadsCounts bool

var list = loadJsonContent('../queues.json')
var roles = loadJsonContent('../roles.json')

module receives 'queue-roles.bicep' = {
  name: 'app-receives'
  params: {
    namespaceName: namespaceName
    queueNames: concat(list.access.appReceives, ownOrdersQueues)
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleId: roles.serviceBusDataReceiver.id
    reason: 'Functions are triggered by this queue.'
  }
}

module counts 'queue-roles.bicep' = if (scalerReadsCounts) {
  name: 'app-counts'
  params: {
    namespaceName: namespaceName
    queueNames: concat(list.access.appReceives, ownOrdersQueues)
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleId: roles.serviceBusDataOwner.id
    reason: roles.serviceBusDataOwner.why
  }
}

module sends 'queue-roles.bicep' = {
  name: 'app-sends'
  params: {
    namespaceName: namespaceName
    queueNames: concat(list.access.appSends, responseQueues, ownOrdersQueues)
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleId: roles.serviceBusDataSender.id
    reason: 'Functions send messages here, or put them back while something they need is away.'
  }
}

module host 'storage-role.bicep' = {
  name: 'app-host-storage'
  params: {
    accountName: hostAccountName
    principalId: principalId
    roleId: roles.storageBlobDataOwner.id
    reason: roles.storageBlobDataOwner.why
  }
}

module state 'storage-role.bicep' = {
  name: 'app-state-store'
  params: {
    accountName: stateAccountName
    principalId: principalId
    roleId: roles.storageTableDataContributor.id
    reason: roles.storageTableDataContributor.why
  }
}

module telemetry 'telemetry-role.bicep' = {
  name: 'app-telemetry'
  params: {
    componentName: componentName
    principalId: principalId
    roleId: roles.monitoringMetricsPublisher.id
    reason: roles.monitoringMetricsPublisher.why
  }
}
