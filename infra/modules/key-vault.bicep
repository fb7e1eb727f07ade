// A vault for the secrets of this environment. The functions' identity may read secrets, and no key or policy
// opens it: rights are roles. Values are put in by people (`az keyvault secret set`), never by a deployment.

@minLength(3)
@maxLength(24)
param name string
param location string
param tags object

@description('False: reached through a private endpoint only.')
param publicAccess bool

resource vault 'Microsoft.KeyVault/vaults@2024-11-01' = {
  name: name
  location: location
  tags: tags
  properties: {
    tenantId: tenant().tenantId
    sku: {
      family: 'A'
      name: 'standard'
    }
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

output id string = vault.id
output name string = vault.name
output uri string = vault.properties.vaultUri
