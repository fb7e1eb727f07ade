// A workbook for operators: orders by state, how long steps take, retries, failures by fingerprint, cost per order.

param location string
param tags object
param workspaceId string

var charts = [
  { title: 'Orders by state', view: 'timechart', query: loadTextContent('../kql/orders-by-state.kql') }
  { title: 'How long steps take, seconds', view: 'table', query: loadTextContent('../kql/step-durations.kql') }
  { title: 'Attempts and retries by agent', view: 'timechart', query: loadTextContent('../kql/retries.kql') }
  { title: 'Failures by fingerprint: step and fault', view: 'table', query: loadTextContent('../kql/failures-by-fingerprint.kql') }
  { title: 'Cost per order: requests and messages (prices: docs/cost.md)', view: 'table', query: loadTextContent('../kql/cost-per-order.kql') }
  { title: 'Late replies, conflicts, age of the oldest due row', view: 'timechart', query: loadTextContent('../kql/health.kql') }
  { title: 'Warnings and errors by order', view: 'table', query: loadTextContent('../kql/order-log.kql') }
]

var chartItems = [for (chart, index) in charts: {
  type: 3
  name: 'chart-${index}'
  content: {
    version: 'KqlItem/1.0'
    title: chart.title
    query: chart.query
    visualization: chart.view
    size: 0
    queryType: 0
    resourceType: 'microsoft.operationalinsights/workspaces'
    timeContextFromParameter: 'TimeRange'
  }
}]

var timeRange = {
  type: 9
  name: 'parameters'
  content: {
    version: 'KqlParameterItem/1.0'
    style: 'pills'
    parameters: [
      {
        version: 'KqlParameterItem/1.0'
        id: guid(workspaceId, 'TimeRange')
        name: 'TimeRange'
        type: 4
        isRequired: true
        value: { durationMs: 86400000 }
        typeSettings: {
          selectableValues: [{ durationMs: 3600000 }, { durationMs: 86400000 }, { durationMs: 604800000 }]
          allowCustom: true
        }
      }
    ]
  }
}

var content = {
  version: 'Notebook/1.0'
  items: concat([timeRange], chartItems)
  fallbackResourceIds: [workspaceId]
}

resource workbook 'Microsoft.Insights/workbooks@2023-06-01' = {
  name: guid(workspaceId, 'orders-workbook')
  location: location
  tags: tags
  kind: 'shared'
  properties: {
    displayName: 'Orders: Scheduler Agent Supervisor'
    category: 'workbook'
    sourceId: workspaceId
    serializedData: string(content)
  }
}
