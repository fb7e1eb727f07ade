// Everything an operator looks at or is woken by.

param actionGroupName string
param metricAlertPrefix string
param queryAlertPrefix string
param location string
param tags object

param workspaceId string
param namespaceId string
param namespaceName string
param stateAccountId string
param stateAccountName string
param responseQueues array
param ownOrdersQueues array

param mailAddresses array
@secure()
param webhookAddresses string
param queueDepthMax int
param overdueMinutesMax int
param purgeLagHoursMax int
param auditStateStore bool

module actionGroup 'action-group.bicep' = {
  name: 'action-group'
  params: {
    name: actionGroupName
    tags: tags
    mailAddresses: mailAddresses
    webhookAddresses: webhookAddresses
  }
}

module queueAlerts 'queue-alerts.bicep' = {
  name: 'queue-alerts'
  params: {
    namePrefix: metricAlertPrefix
    tags: tags
    namespaceId: namespaceId
    actionGroupId: actionGroup.outputs.id
    responseQueues: responseQueues
    ownOrdersQueues: ownOrdersQueues
    queueDepthMax: queueDepthMax
  }
}

module stateAlerts 'state-alerts.bicep' = {
  name: 'state-alerts'
  params: {
    namePrefix: metricAlertPrefix
    tags: tags
    stateAccountId: stateAccountId
    actionGroupId: actionGroup.outputs.id
  }
}

module queryAlerts 'query-alerts.bicep' = {
  name: 'query-alerts'
  params: {
    namePrefix: queryAlertPrefix
    location: location
    tags: tags
    workspaceId: workspaceId
    actionGroupId: actionGroup.outputs.id
    overdueMinutesMax: overdueMinutesMax
    purgeLagHoursMax: purgeLagHoursMax
  }
}

module workbook 'workbook.bicep' = {
  name: 'workbook'
  params: {
    location: location
    tags: tags
    workspaceId: workspaceId
  }
}

module diagnostics 'diagnostics.bicep' = {
  name: 'diagnostics'
  params: {
    workspaceId: workspaceId
    namespaceName: namespaceName
    stateAccountName: stateAccountName
    auditStateStore: auditStateStore
  }
}
