// What the identity of the callback endpoint's own app may do. It receives from no queue, and sends to one (two lanes).

param principalId string
param namespaceName string

@description('The account of this app\'s host, which is not the engine\'s.')
param hostAccountName string

param stateAccountName string
param tableName string
param componentName string

var list = loadJsonContent('../queues.json')
var roles = loadJsonContent('../roles.json')

module sends 'queue-roles.bicep' = {
  name: 'callback-sends'
  params: {
    namespaceName: namespaceName
    queueNames: list.access.callbackAppSends
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleId: roles.serviceBusDataSender.id
    reason: 'The endpoint puts each accepted callback on this queue.'
  }
}

module host 'storage-role.bicep' = {
  name: 'callback-host-role'
  params: {
    accountName: hostAccountName
    principalId: principalId
    roleId: roles.storageBlobDataOwner.id
    reason: roles.storageBlobDataOwner.why
  }
}

module state 'table-role.bicep' = {
  name: 'callback-state-store'
  params: {
    accountName: stateAccountName
    tableName: tableName
    principalId: principalId
    principalType: 'ServicePrincipal'
    roleId: roles.storageTableDataContributor.id
    reason: 'The endpoint reads the order of a token, records which result of it counts, and holds it while the queue is away. On this table only: the engine creates it.'
  }
}

module telemetry 'telemetry-role.bicep' = {
  name: 'callback-telemetry'
  params: {
    componentName: componentName
    principalId: principalId
    roleId: roles.monitoringMetricsPublisher.id
    reason: roles.monitoringMetricsPublisher.why
  }
}
