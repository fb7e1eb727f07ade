// The state store refuses requests: too many a second for a partition or the account.

param name string
param tags object
param stateAccountId string
param actionGroupId string

resource throttled 'Microsoft.Insights/metricAlerts@2018-03-01' = {
  name: name
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
