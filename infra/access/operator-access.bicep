// What an operator may do: read orders, alerts and rejected messages, send commands and replayed orders; with
// readsQueues also look into the working queues and their dead letters, and remove messages there.

param principalId string

@allowed([
  'ServicePrincipal'
  'User'
  'Group'
])
param principalType string

param namespaceName string
param stateAccountName string
param tableName string

@description('Queues of orders of single applications: rejected orders are replayed to them.')
param ownOrdersQueues array

@description('Receive also from the queues that the functions receive from.')
param readsQueues bool

var list = loadJsonContent('../queues.json')
var roles = loadJsonContent('../roles.json')
var workingQueues = readsQueues ? concat(list.access.appReceives, ownOrdersQueues) : []

module receives 'queue-roles.bicep' = {
  name: 'operator-receives'
  params: {
    namespaceName: namespaceName
    queueNames: concat(list.access.operatorReceives, workingQueues)
    principalId: principalId
    principalType: principalType
    roleId: roles.serviceBusDataReceiver.id
    reason: 'Operators read alerts, rejected messages and dead letters.'
  }
}

module sends 'queue-roles.bicep' = {
  name: 'operator-sends'
  params: {
    namespaceName: namespaceName
    queueNames: concat(list.access.operatorSends, ownOrdersQueues)
    principalId: principalId
    principalType: principalType
    roleId: roles.serviceBusDataSender.id
    reason: 'Operators send commands, and replay rejected orders.'
  }
}

module reads 'table-role.bicep' = {
  name: 'operator-reads'
  params: {
    accountName: stateAccountName
    tableName: tableName
    principalId: principalId
    principalType: principalType
    roleId: roles.storageTableDataReader.id
    reason: roles.storageTableDataReader.why
  }
}
