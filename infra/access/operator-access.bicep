// What an operator may do: read orders, read alerts and rejected messages, send commands and replayed orders.

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

var list = loadJsonContent('../queues.json')
var roles = loadJsonContent('../roles.json')

module receives 'queue-roles.bicep' = {
  name: 'operator-receives'
  params: {
    namespaceName: namespaceName
    queueNames: list.access.operatorReceives
    principalId: principalId
    principalType: principalType
    roleId: roles.serviceBusDataReceiver.id
    reason: 'Operators read alerts and rejected messages.'
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
