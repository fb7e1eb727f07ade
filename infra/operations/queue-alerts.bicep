// Alerts on what Service Bus itself counts: they work even when no function does.

param namePrefix string
param tags object
param namespaceId string
param actionGroupId string

@description('Applications\' response queues.')
param responseQueues array

@description('Queues of orders of single applications.')
param ownOrdersQueues array

@description('An alert is sent if more messages than this wait in a working queue.')
@minValue(1)
param queueDepthMax int

var list = loadJsonContent('../queues.json')

var rules = [
  {
    name: 'operator-alerts-waiting'
    description: 'The system asks for an operator: read the queue operator-alerts; each alert says what to do.'
    severity: 1
    metric: 'ActiveMessages'
    queues: [
      'operator-alerts'
    ]
    threshold: 0
  }
  {
    name: 'orders-rejected'
    description: 'Messages that could not be processed are kept on orders-rejected, with reason and description.'
    severity: 2
    metric: 'ActiveMessages'
    queues: [
      'orders-rejected'
    ]
    threshold: 0
  }
  {
    name: 'dead-letters'
    description: 'A queue has dead letters of its own: forwarding failed, or dead-letters gave up. Look with sas messages list dead-letters (or QUEUE/dlq, for a response queue).'
    severity: 1
    metric: 'DeadletteredMessages'
    queues: [
      '*'
    ]
    threshold: 0
  }
  {
    name: 'queue-depth'
    description: 'A working queue grows faster than it is read: look for a function that fails or does not scale.'
    severity: 2
    metric: 'ActiveMessages'
    queues: concat(list.access.appReceives, ownOrdersQueues)
    threshold: queueDepthMax
  }
  {
    name: 'answers-unread'
    description: 'An application does not read its response queue; what expires there is lost to it: inform its team.'
    severity: 3
    metric: 'ActiveMessages'
    queues: empty(responseQueues) ? [
      'responses-'
    ] : responseQueues
    threshold: queueDepthMax
  }
]

resource alerts 'Microsoft.Insights/metricAlerts@2018-03-01' = [for rule in rules: {
  name: '${namePrefix}${rule.name}'
  location: 'global'
  tags: tags
  properties: {
    description: rule.description
    severity: rule.severity
    enabled: true
    autoMitigate: true
    scopes: [
      namespaceId
    ]
    evaluationFrequency: 'PT1M'
    windowSize: 'PT5M'
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [
        {
          name: 'waiting'
          criterionType: 'StaticThresholdCriterion'
          metricNamespace: 'Microsoft.ServiceBus/namespaces'
          metricName: rule.metric
          timeAggregation: 'Maximum'
          operator: 'GreaterThan'
          threshold: rule.threshold
          dimensions: [
            {
              name: 'EntityName'
              operator: 'Include'
              values: rule.queues
            }
          ]
        }
      ]
    }
    actions: [
      {
        actionGroupId: actionGroupId
      }
    ]
  }
}]

// At the namespace's limit: what to do is in docs/scale.md.
resource throttled 'Microsoft.Insights/metricAlerts@2018-03-01' = {
  name: '${namePrefix}service-bus-throttled'
  location: 'global'
  tags: tags
  properties: {
    description: 'Service Bus refuses requests because the namespace is at its limit: see docs/scale.md.'
    severity: 2
    enabled: true
    autoMitigate: true
    scopes: [
      namespaceId
    ]
    evaluationFrequency: 'PT5M'
    windowSize: 'PT5M'
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [
        {
          name: 'throttled'
          criterionType: 'StaticThresholdCriterion'
          metricNamespace: 'Microsoft.ServiceBus/namespaces'
          metricName: 'ThrottledRequests'
          timeAggregation: 'Total'
          operator: 'GreaterThan'
          threshold: 0
        }
      ]
    }
    actions: [
      {
        actionGroupId: actionGroupId
      }
    ]
  }
}
