// What Table Storage itself counts: it works when logs are cut off.

param namePrefix string
param tags object
param stateAccountId string
param actionGroupId string

resource throttled 'Microsoft.Insights/metricAlerts@2018-03-01' = {
  name: '${namePrefix}state-store-throttled'
  location: 'global'
  tags: tags
  properties: {
    description: 'The state store answers "server busy": see docs/scale.md for what to do at its limits.'
    severity: 2
    enabled: true
    autoMitigate: true
    scopes: [
      '${stateAccountId}/tableServices/default'
    ]
    evaluationFrequency: 'PT5M'
    windowSize: 'PT5M'
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [
        {
          name: 'busy'
          criterionType: 'StaticThresholdCriterion'
          metricNamespace: 'Microsoft.Storage/storageAccounts/tableServices'
          metricName: 'Transactions'
          timeAggregation: 'Total'
          operator: 'GreaterThan'
          threshold: 10
          dimensions: [
            {
              name: 'ResponseType'
              operator: 'Include'
              values: [
                'ServerBusyError'
                'ClientThrottlingError'
                'ClientAccountRequestThrottlingError'
              ]
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
}

// A sweep asks each shard every ten seconds. The log alert supervisor-silent is blind when logs are cut off.
resource idle 'Microsoft.Insights/metricAlerts@2018-03-01' = {
  name: '${namePrefix}state-store-idle'
  location: 'global'
  tags: tags
  properties: {
    description: 'No request reaches the state store: no supervisor runs, and expired steps are not recovered. Check that the app is started.'
    severity: 0
    enabled: true
    autoMitigate: true
    scopes: [
      '${stateAccountId}/tableServices/default'
    ]
    evaluationFrequency: 'PT5M'
    windowSize: 'PT15M'
    criteria: {
      'odata.type': 'Microsoft.Azure.Monitor.SingleResourceMultipleMetricCriteria'
      allOf: [
        {
          name: 'idle'
          criterionType: 'StaticThresholdCriterion'
          metricNamespace: 'Microsoft.Storage/storageAccounts/tableServices'
          metricName: 'Transactions'
          timeAggregation: 'Total'
          operator: 'LessThan'
          threshold: 16
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
