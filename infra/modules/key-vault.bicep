// A vault for the secrets of this environment. No key or policy opens it: rights are roles, and an owner grants them
// (`sas azd owner`), so that who deploys cannot read secrets. People put values in (`az keyvault secret set`).

@minLength(3)
@maxLength(24)
param name string
param location string
param tags object

@description('False: reached through a private endpoint only.')
param publicAccess bool

param workspaceId string

resource vault 'Microsoft.KeyVault/vaults@2024-11-01' = {
  name: name
  location: location
  tags: tags
  properties: {
    tenantId: tenant().tenantId
    sku: { family: 'A', name: 'standard' }
    enableRbacAuthorization: true
    enableSoftDelete: true
    enablePurgeProtection: true // what a lost key encoded is lost
    softDeleteRetentionInDays: 90
    publicNetworkAccess: publicAccess ? 'Enabled' : 'Disabled'
    networkAcls: {
      bypass: 'None'
      defaultAction: publicAccess ? 'Allow' : 'Deny'
    }
  }
}

// Who read or changed which secret. The app reads each once a day.
resource diagnostics 'Microsoft.Insights/diagnosticSettings@2021-05-01-preview' = {
  scope: vault
  name: 'to-log-analytics'
  properties: {
    workspaceId: workspaceId
    logs: [{ category: 'AuditEvent', enabled: true }]
    metrics: [{ category: 'AllMetrics', enabled: true }]
  }
}

output uri string = vault.properties.vaultUri
