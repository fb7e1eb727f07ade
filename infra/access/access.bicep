// Every right that the template grants, to the functions, the operators, the deploying identity and the applications.
// On queues each is a row of `onQueues`; the others are resources below. Reasons are in roles.json or stand here, and
// are stored with each assignment. Roles on the vault are granted by an owner (`sas azd owner`), not here.

@description('Resource id of the functions\' identity. It stands for the principal in names: what-if shows rights only where their names are known before anything is made.')
param appIdentityId string

@description('Its principal id, for properties only. An identity made anew has another: remove the rights of the old one first.')
param appPrincipalId string

param operatorPrincipalId string

@allowed(['ServicePrincipal', 'User', 'Group'])
param operatorPrincipalType string

@description('Operators receive also from the queues that the functions receive from.')
param operatorReadsQueues bool

@description('The identity that deploys from GitHub: it sends an order after a deployment, and stores exports. Empty: none.')
param deployerPrincipalId string

@description('Applications: name and principalId; urgent and bound where they are.')
param applications array

@description('More than 0 refuses the deployment: give the operator, the deployer and each application its own identity.')
@minValue(0)
@maxValue(0)
param principalsGivenTwice int

param namespaceName string
param hostAccountName string
param exportsContainer string
param stateAccountName string
param tableName string
param componentName string

@description('Applications\' response queues: notifications are sent to them.')
param responseQueues array

@description('Queues of orders of single applications: functions are triggered by them, operators replay orders to them.')
param ownOrdersQueues array

var list = loadJsonContent('../queues.json')
var roles = loadJsonContent('../roles.json')
var roleIds = 'Microsoft.Authorization/roleDefinitions'
var app = { id: appIdentityId, type: 'ServicePrincipal' }
var workingQueues = concat(list.access.appReceives, ownOrdersQueues)
var operators = filter([
  { name: 'operator', id: operatorPrincipalId, type: operatorPrincipalType }
  { name: 'deployer', id: deployerPrincipalId, type: 'ServicePrincipal' }
], operator => principalsGivenTwice == 0 && !empty(operator.id)) // to the linter a decorator is no use
var identified = filter(applications, application => !empty(application.principalId))
var senders = [for application in identified: {
  name: application.name
  principal: { id: application.principalId, type: 'ServicePrincipal' }
  bound: application.?bound ?? false
  ownQueues: concat(['${list.ownOrdersPrefix}${application.name}'], (application.?urgent ?? false) ? ['${list.ownOrdersPrefix}${application.name}-urgent'] : [])
  sharedQueues: (application.?urgent ?? false) ? list.access.urgentApplicationSends : list.access.applicationSends
}]

// On queues: who, with which role, where, why.
var ofApp = [
  {
    name: 'app-receives'
    principal: app
    role: roles.serviceBusDataReceiver
    queues: workingQueues
    reason: 'Functions are triggered by this queue.'
  }
  {
    name: 'app-sends'
    principal: app
    role: roles.serviceBusDataSender
    queues: concat(list.access.appSends, responseQueues, ownOrdersQueues)
    reason: 'Functions send messages here, or put them back while something they need is away.'
  }
]
var ofOperators = [for operator in operators: [
  {
    name: '${operator.name}-receives'
    principal: operator
    role: roles.serviceBusDataReceiver
    queues: concat(list.access.operatorReceives, operatorReadsQueues ? workingQueues : [])
    reason: 'Operators read alerts, rejected messages and dead letters.'
  }
  {
    name: '${operator.name}-sends'
    principal: operator
    role: roles.serviceBusDataSender
    queues: concat(list.access.operatorSends, ownOrdersQueues)
    reason: 'Operators send commands, and replay rejected orders.'
  }
]]
var ofApplications = [for sender in senders: [
  {
    name: 'sends-${sender.name}'
    principal: sender.principal
    role: roles.serviceBusDataSender
    queues: sender.bound ? sender.ownQueues : sender.sharedQueues
    reason: 'Application ${sender.name} sends orders.'
  }
  {
    name: 'receives-${sender.name}'
    principal: sender.principal
    role: roles.serviceBusDataReceiver
    queues: [
      '${list.responsePrefix}${sender.name}'
    ]
    reason: 'Application ${sender.name} reads its own answers, and nobody else\'s.'
  }
]]
var onQueues = concat(ofApp, flatten(ofOperators), flatten(ofApplications))

module queueRoles 'queue-roles.bicep' = [for grant in onQueues: {
  name: 'grant-${grant.name}'
  params: {
    namespaceName: namespaceName
    queueNames: grant.queues
    principalKey: grant.principal.id
    principalId: grant.principal.id == appIdentityId ? appPrincipalId : grant.principal.id
    principalType: grant.principal.type
    roleId: grant.role.id
    reason: grant.reason
  }
}]

resource namespace 'Microsoft.ServiceBus/namespaces@2024-01-01' existing = {
  name: namespaceName
}

resource hostAccount 'Microsoft.Storage/storageAccounts@2025-06-01' existing = {
  name: hostAccountName

  resource blobs 'blobServices' existing = {
    name: 'default'

    resource exports 'containers' existing = {
      name: exportsContainer
    }
  }
}

resource stateAccount 'Microsoft.Storage/storageAccounts@2025-06-01' existing = {
  name: stateAccountName

  resource tables 'tableServices' existing = {
    name: 'default'

    resource orders 'tables' existing = {
      name: tableName
    }
  }
}

resource component 'Microsoft.Insights/components@2020-02-02' existing = {
  name: componentName
}

// The extension asks the namespace for the counts of a queue, which Receiver on that queue does not allow (docs/adr/0032).
resource appScales 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  scope: namespace
  name: guid(namespace.id, appIdentityId, roles.reader.id)
  properties: {
    principalId: appPrincipalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId(roleIds, roles.reader.id)
    description: 'sas: The scaler of the triggers reads how many messages wait, as the identity of the functions.'
  }
}

resource appHosts 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  scope: hostAccount
  name: guid(hostAccount.id, appIdentityId, roles.storageBlobDataOwner.id)
  properties: {
    principalId: appPrincipalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId(roleIds, roles.storageBlobDataOwner.id)
    description: 'sas: ${roles.storageBlobDataOwner.why}'
  }
}

resource appStores 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  scope: stateAccount
  name: guid(stateAccount.id, appIdentityId, roles.storageTableDataContributor.id)
  properties: {
    principalId: appPrincipalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId(roleIds, roles.storageTableDataContributor.id)
    description: 'sas: ${roles.storageTableDataContributor.why}'
  }
}

resource appReports 'Microsoft.Authorization/roleAssignments@2022-04-01' = {
  scope: component
  name: guid(component.id, appIdentityId, roles.monitoringMetricsPublisher.id)
  properties: {
    principalId: appPrincipalId
    principalType: 'ServicePrincipal'
    roleDefinitionId: subscriptionResourceId(roleIds, roles.monitoringMetricsPublisher.id)
    description: 'sas: ${roles.monitoringMetricsPublisher.why}'
  }
}

resource operatorsRead 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for operator in operators: {
  scope: stateAccount::tables::orders
  name: guid(stateAccount::tables::orders.id, operator.id, roles.storageTableDataReader.id)
  properties: {
    principalId: operator.id
    principalType: operator.type
    roleDefinitionId: subscriptionResourceId(roleIds, roles.storageTableDataReader.id)
    description: 'sas: ${roles.storageTableDataReader.why}'
  }
}]

resource operatorsExport 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for operator in operators: {
  scope: hostAccount::blobs::exports
  name: guid(hostAccount::blobs::exports.id, operator.id, roles.storageBlobDataContributor.id)
  properties: {
    principalId: operator.id
    principalType: operator.type
    roleDefinitionId: subscriptionResourceId(roleIds, roles.storageBlobDataContributor.id)
    description: 'sas: ${roles.storageBlobDataContributor.why}'
  }
}]

// On the resource group, for people: the portal, alerts and logs. Who deploys has more already.
var readerRoles = empty(operatorPrincipalId) ? [] : [
  roles.reader
  roles.monitoringReader
  roles.logAnalyticsReader
]

resource operatorsLook 'Microsoft.Authorization/roleAssignments@2022-04-01' = [for role in readerRoles: {
  name: guid(resourceGroup().id, operatorPrincipalId, role.id)
  properties: {
    principalId: operatorPrincipalId
    principalType: operatorPrincipalType
    roleDefinitionId: subscriptionResourceId(roleIds, role.id)
    description: 'sas: ${role.why}'
  }
}]

output namesOnQueues array = [for (grant, index) in onQueues: queueRoles[index].outputs.names]
output namesOfOperators array = [for (operator, index) in operators: [operatorsRead[index].name, operatorsExport[index].name]]
output namesOnGroup array = [for (role, index) in readerRoles: operatorsLook[index].name]
output namesOfApp array = [appScales.name, appHosts.name, appStores.name, appReports.name]
