// Log Analytics and Application Insights. Keys are switched off: telemetry is sent as the app's identity.

param workspaceName string
param componentName string
param location string
param tags object

@description('Days that logs are kept.')
@minValue(30)
@maxValue(730)
param retentionDays int

@description('Gigabytes a day after which nothing more is taken; -1 for no cap.')
@minValue(-1)
param dailyQuotaGb int

resource workspace 'Microsoft.OperationalInsights/workspaces@2025-02-01' = {
  name: workspaceName
  location: location
  tags: tags
  properties: {
    sku: {
      name: 'PerGB2018'
    }
    retentionInDays: retentionDays
    workspaceCapping: {
      dailyQuotaGb: dailyQuotaGb
    }
    features: {
      disableLocalAuth: true
      enableLogAccessUsingOnlyResourcePermissions: true
    }
  }
}

resource component 'Microsoft.Insights/components@2020-02-02' = {
  name: componentName
  location: location
  tags: tags
  kind: 'web'
  properties: {
    Application_Type: 'web'
    WorkspaceResourceId: workspace.id
    DisableLocalAuth: true
  }
}

output workspaceId string = workspace.id
output componentName string = component.name
// An address and an instrumentation key; with local authentication off, the key alone lets nobody in.
output connectionString string = component.properties.ConnectionString
