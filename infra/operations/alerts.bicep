// Whom alerts reach, and every alert. Those on metrics work when no function does, and when logs are cut off.

param actionGroupName string
param location string
param tags object

@description('Mail addresses; none leaves the alerts in the portal only.')
param mailAddresses array

@secure()
@description('https addresses that alerts are posted to, with commas between; empty: none.')
param webhookAddresses string

param workspaceId string
param namespaceId string
param stateAccountId string

@description('Applications\' response queues.')
param responseQueues array

@description('Queues of orders of single applications.')
param ownOrdersQueues array

param queueDepthMax int
param ordersWaitingMinutesMax int
param overdueMinutesMax int
param purgeLagHoursMax int

@description('amount and from; empty: no budget.')
param monthlyBudget object

var list = loadJsonContent('../queues.json')
var webhooks = empty(webhookAddresses) ? [] : split(replace(webhookAddresses, ' ', ''), ',')
var queueBytesMax = list.kinds.kept.properties.maxSizeInMegabytes * 1024 * 1024 / 100 * 80
var tables = '${stateAccountId}/tableServices/default'

// A rule is stateful: it sends one mail when its condition begins and one when it ends. So a rule on what waits is
// silent until the queue is empty; rules on what comes in fire again for what comes later.
var metricRules = [
  {
    name: 'operator-alerts-waiting'
    description: 'The system asks for an operator: read the queue operator-alerts; each alert says what to do.'
    severity: 1
    scope: namespaceId
    metric: { name: 'IncomingMessages', aggregation: 'Total', operator: 'GreaterThan', threshold: 0 }
    dimensions: [{ name: 'EntityName', operator: 'Include', values: ['operator-alerts'] }]
    times: { every: 'PT1M', window: 'PT5M' }
  }
  {
    name: 'orders-rejected'
    description: 'Messages that could not be processed are kept on orders-rejected, with reason and description.'
    severity: 2
    scope: namespaceId
    metric: { name: 'IncomingMessages', aggregation: 'Total', operator: 'GreaterThan', threshold: 0 }
    dimensions: [{ name: 'EntityName', operator: 'Include', values: ['orders-rejected'] }]
    times: { every: 'PT1M', window: 'PT5M' }
  }
  {
    name: 'operators-reminded'
    description: 'The queue operator-alerts or orders-rejected was not empty for a day: act on what lies there, then remove it.'
    severity: 3
    scope: namespaceId
    metric: { name: 'ActiveMessages', aggregation: 'Minimum', operator: 'GreaterThan', threshold: 0 }
    dimensions: [{ name: 'EntityName', operator: 'Include', values: ['operator-alerts', 'orders-rejected'] }]
    times: { every: 'PT1H', window: 'P1D' }
  }
  {
    name: 'dead-letters'
    description: 'A queue has dead letters of its own: forwarding failed, or dead-letters gave up. Look with sas messages list dead-letters (or QUEUE/dlq, for a response queue).'
    severity: 1
    scope: namespaceId
    metric: { name: 'DeadletteredMessages', aggregation: 'Maximum', operator: 'GreaterThan', threshold: 0 }
    dimensions: [{ name: 'EntityName', operator: 'Include', values: ['*'] }]
    times: { every: 'PT1M', window: 'PT5M' }
  }
  {
    name: 'queue-depth'
    description: 'A working queue grows faster than it is read: look for a function that fails or does not scale.'
    severity: 2
    scope: namespaceId
    metric: { name: 'ActiveMessages', aggregation: 'Maximum', operator: 'GreaterThan', threshold: queueDepthMax }
    dimensions: [{ name: 'EntityName', operator: 'Include', values: concat(list.access.appReceives, ownOrdersQueues) }]
    times: { every: 'PT1M', window: 'PT5M' }
  }
  {
    name: 'answers-unread'
    description: 'An application does not read its response queue; what expires there is lost to it: inform its team.'
    severity: 3
    scope: namespaceId
    metric: { name: 'ActiveMessages', aggregation: 'Maximum', operator: 'GreaterThan', threshold: queueDepthMax }
    dimensions: [{ name: 'EntityName', operator: 'Include', values: responseQueues }]
    times: { every: 'PT1M', window: 'PT5M' }
  }
  {
    name: 'queue-size'
    description: 'A queue is filled to 80 %, and takes no more when it is full: let its reader run, or remove what lies in it (docs/operating.md).'
    severity: 2
    scope: namespaceId
    metric: { name: 'Size', aggregation: 'Maximum', operator: 'GreaterThan', threshold: queueBytesMax }
    dimensions: [{ name: 'EntityName', operator: 'Include', values: ['*'] }]
    times: { every: 'PT5M', window: 'PT15M' }
  }
  {
    name: 'service-bus-throttled'
    description: 'Service Bus refuses requests because the namespace is at its limit: see docs/scale.md.'
    severity: 2
    scope: namespaceId
    metric: { name: 'ThrottledRequests', aggregation: 'Total', operator: 'GreaterThan', threshold: 0 }
    dimensions: []
    times: { every: 'PT5M', window: 'PT5M' }
  }
  {
    name: 'state-store-throttled'
    description: 'The state store answers "server busy": see docs/scale.md for what to do at its limits.'
    severity: 2
    scope: tables
    metric: { name: 'Transactions', aggregation: 'Total', operator: 'GreaterThan', threshold: 10 }
    dimensions: [{ name: 'ResponseType', operator: 'Include', values: ['ServerBusyError', 'ClientThrottlingError', 'ClientAccountRequestThrottlingError'] }]
    times: { every: 'PT5M', window: 'PT5M' }
  }
  {
    // A sweep asks each shard every ten seconds. The log alert supervisor-silent is blind when logs are cut off.
    name: 'state-store-idle'
    description: 'No request reaches the state store: no supervisor runs, and expired steps are not recovered. Check that the app is started.'
    severity: 0
    scope: tables
    metric: { name: 'Transactions', aggregation: 'Total', operator: 'LessThan', threshold: 16 }
    dimensions: []
    times: { every: 'PT5M', window: 'PT15M' }
  }
]

// What the functions tell of themselves. Each query is a file under kql, tested against telemetry-fields.json.
var logRules = [
  {
    name: 'purge-late'
    description: 'The purge does not keep up: run it more often (purgeSchedule, docs/operating.md).'
    severity: 3
    query: loadTextContent('../kql/alert-purge-late.kql')
    result: { column: 'LateHours', operator: 'GreaterThan', threshold: purgeLagHoursMax }
    times: { every: 'PT1H', window: 'PT3H' } // the purge runs every ten minutes
  }
  {
    name: 'logs-cut'
    description: 'The workspace has reached its daily cap: until tomorrow every alert on logs is blind. Raise ordersPerDay.'
    severity: 1
    query: loadTextContent('../kql/alert-logs-cut.kql')
    result: { column: 'Cuts', operator: 'GreaterThan', threshold: 0 }
    times: { every: 'PT5M', window: 'PT15M' }
  }
  {
    name: 'orders-failed'
    description: 'Orders ended in Error and wait for an operator: resubmit or undo them.'
    severity: 1
    query: loadTextContent('../kql/alert-orders-failed.kql')
    result: { column: 'Orders', operator: 'GreaterThan', threshold: 0 }
    times: { every: 'PT5M', window: 'PT15M' }
  }
  {
    name: 'orders-waiting'
    description: 'The oldest message of a queue of orders waits too long: the functions that take orders sleep, fail or do not keep up.'
    severity: 1
    query: loadTextContent('../kql/alert-orders-waiting.kql')
    result: { column: 'OldestMinutes', operator: 'GreaterThan', threshold: ordersWaitingMinutesMax }
    times: { every: 'PT5M', window: 'PT15M' }
  }
  {
    name: 'due-row-old'
    description: 'The oldest due row is far past its time: the supervisor does not keep up, or cannot help it.'
    severity: 1
    query: loadTextContent('../kql/alert-due-row-age.kql')
    result: { column: 'OldestMinutes', operator: 'GreaterThan', threshold: overdueMinutesMax }
    times: { every: 'PT5M', window: 'PT15M' }
  }
  {
    name: 'supervisor-silent'
    description: 'No sweep was seen for a quarter of an hour: nothing that expires is being recovered.'
    severity: 0
    query: loadTextContent('../kql/alert-supervisor-silent.kql')
    result: { column: 'Sweeps', operator: 'LessThan', threshold: 1 }
    times: { every: 'PT5M', window: 'PT15M' }
  }
  {
    name: 'breaker-open'
    description: 'A remote service is not being called because it fails: its breaker is open.'
    severity: 2
    query: loadTextContent('../kql/alert-breaker-open.kql')
    result: { column: 'Opened', operator: 'GreaterThan', threshold: 0 }
    times: { every: 'PT5M', window: 'PT15M' }
  }
  {
    name: 'functions-failing'
    description: 'The handling of messages fails: they come again, and are dead-lettered after 8 to 16 minutes.'
    severity: 2
    query: loadTextContent('../kql/alert-functions-failing.kql')
    result: { column: 'Failed', operator: 'GreaterThan', threshold: 20 }
    times: { every: 'PT5M', window: 'PT15M' }
  }
]

resource actionGroup 'Microsoft.Insights/actionGroups@2023-01-01' = {
  name: actionGroupName
  location: 'global'
  tags: tags
  properties: {
    enabled: true
    groupShortName: 'orders'
    emailReceivers: [for (address, index) in mailAddresses: {
      name: 'operator-${index}'
      emailAddress: address
      useCommonAlertSchema: true
    }]
    webhookReceivers: [for (address, index) in webhooks: {
      name: 'operator-webhook-${index}'
      serviceUri: address
      useCommonAlertSchema: true
    }]
  }
}

resource metricAlerts 'Microsoft.Insights/metricAlerts@2018-03-01' = [for rule in metricRules: {
  name: 'ma-${rule.name}'
  location: 'global'
  tags: tags
  properties: {
    description: rule.description
    severity: rule.severity
    enabled: true
    autoMitigate: true
    scopes: [rule.scope]
    evaluationFrequency: rule.times.every
    windowSize: rule.times.window
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [
        {
          name: rule.name
          criterionType: 'StaticThresholdCriterion'
          metricNamespace: rule.scope == namespaceId ? 'Microsoft.ServiceBus/namespaces' : 'Microsoft.Storage/storageAccounts/tableServices'
          metricName: rule.metric.name
          timeAggregation: rule.metric.aggregation
          operator: rule.metric.operator
          threshold: rule.metric.threshold
          dimensions: rule.dimensions
        }
      ]
    }
    actions: [{ actionGroupId: actionGroup.id }]
  }
}]

resource logAlerts 'Microsoft.Insights/scheduledQueryRules@2023-12-01' = [for rule in logRules: {
  name: 'qa-${rule.name}'
  location: location
  tags: tags
  kind: 'LogAlert'
  properties: {
    displayName: rule.name
    description: rule.description
    severity: rule.severity
    enabled: true
    autoMitigate: true
    skipQueryValidation: true // tables are empty, and so unknown, until the first telemetry
    scopes: [workspaceId]
    evaluationFrequency: rule.times.every
    windowSize: rule.times.window
    criteria: {
      allOf: [
        {
          query: rule.query
          metricMeasureColumn: rule.result.column
          timeAggregation: 'Maximum'
          operator: rule.result.operator
          threshold: rule.result.threshold
          failingPeriods: { numberOfEvaluationPeriods: 1, minFailingPeriodsToAlert: 1 }
        }
      ]
    }
    actions: {
      actionGroups: [actionGroup.id]
    }
  }
}]

// Azure refuses a first month that has passed when a budget is made, and another first month ever after: it is given.
resource budget 'Microsoft.Consumption/budgets@2023-11-01' = if (!empty(monthlyBudget)) {
  name: 'monthly'
  properties: {
    category: 'Cost'
    amount: monthlyBudget.?amount
    timeGrain: 'Monthly'
    timePeriod: {
      startDate: '${monthlyBudget.?from}-01T00:00:00Z'
    }
    notifications: {
      spent: {
        enabled: true
        operator: 'GreaterThan'
        threshold: 80
        thresholdType: 'Actual'
        contactEmails: []
        contactGroups: [actionGroup.id]
      }
      foreseen: {
        enabled: true
        operator: 'GreaterThan'
        threshold: 100
        thresholdType: 'Forecasted'
        contactEmails: []
        contactGroups: [actionGroup.id]
      }
    }
  }
}
