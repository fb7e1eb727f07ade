// Alerts on what the functions tell of themselves. Each query is a file under kql, tested against telemetry-fields.json.

param namePrefix string
param location string
param tags object
param workspaceId string
param actionGroupId string

@description('Minutes that a due row may be overdue before an alert.')
@minValue(1)
@maxValue(1440)
param overdueMinutesMax int

@description('Hours that a finished order may be kept beyond its retention before an alert.')
@minValue(1)
@maxValue(1000)
param purgeLagHoursMax int

var rules = [
  {
    name: 'purge-late'
    description: 'The purge does not keep up: run it more often (purgeSchedule, docs/operating.md).'
    severity: 3
    query: loadTextContent('../kql/alert-purge-late.kql')
    column: 'LateHours'
    operator: 'GreaterThan'
    threshold: purgeLagHoursMax
    every: 'PT1H'
    window: 'PT3H' // the purge runs every ten minutes
  }
  {
    name: 'logs-cut'
    description: 'The workspace has reached its daily cap: until tomorrow every alert on logs is blind. Raise ordersPerDay.'
    severity: 1
    query: loadTextContent('../kql/alert-logs-cut.kql')
    column: 'Cuts'
    operator: 'GreaterThan'
    threshold: 0
    every: 'PT5M'
    window: 'PT15M'
  }
  {
    name: 'orders-failed'
    description: 'Orders ended in Error and wait for an operator: resubmit or undo them.'
    severity: 1
    query: loadTextContent('../kql/alert-orders-failed.kql')
    column: 'Orders'
    operator: 'GreaterThan'
    threshold: 0
    every: 'PT5M'
    window: 'PT15M'
  }
  {
    name: 'due-row-old'
    description: 'The oldest due row is far past its time: the supervisor does not keep up, or cannot help it.'
    severity: 1
    query: loadTextContent('../kql/alert-due-row-age.kql')
    column: 'OldestMinutes'
    operator: 'GreaterThan'
    threshold: overdueMinutesMax
    every: 'PT5M'
    window: 'PT15M'
  }
  {
    name: 'supervisor-silent'
    description: 'No sweep was seen for a quarter of an hour: nothing that expires is being recovered.'
    severity: 0
    query: loadTextContent('../kql/alert-supervisor-silent.kql')
    column: 'Sweeps'
    operator: 'LessThan'
    threshold: 1
    every: 'PT5M'
    window: 'PT15M'
  }
  {
    name: 'breaker-open'
    description: 'A remote service is not being called because it fails: its breaker is open.'
    severity: 2
    query: loadTextContent('../kql/alert-breaker-open.kql')
    column: 'Opened'
    operator: 'GreaterThan'
    threshold: 0
    every: 'PT5M'
    window: 'PT15M'
  }
  {
    name: 'functions-failing'
    description: 'The handling of messages fails: they come again, and are dead-lettered after some 12 minutes.'
    severity: 2
    query: loadTextContent('../kql/alert-functions-failing.kql')
    column: 'Failed'
    operator: 'GreaterThan'
    threshold: 20
    every: 'PT5M'
    window: 'PT15M'
  }
]

resource alerts 'Microsoft.Insights/scheduledQueryRules@2023-12-01' = [for rule in rules: {
  name: '${namePrefix}${rule.name}'
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
    scopes: [
      workspaceId
    ]
    evaluationFrequency: rule.every
    windowSize: rule.window
    criteria: {
      allOf: [
        {
          query: rule.query
          metricMeasureColumn: rule.column
          timeAggregation: 'Maximum'
          operator: rule.operator
          threshold: rule.threshold
          failingPeriods: {
            numberOfEvaluationPeriods: 1
            minFailingPeriodsToAlert: 1
          }
        }
      ]
    }
    actions: {
      actionGroups: [
        actionGroupId
      ]
    }
  }
}]
