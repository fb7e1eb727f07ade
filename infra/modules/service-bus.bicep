// The Service Bus namespace. No keys; TLS 1.2. Standard unless private endpoints ask for Premium.

@minLength(6)
@maxLength(50)
param name string
param location string
param tags object

@allowed([
  'Standard'
  'Premium'
])
param sku string

@description('Messaging units of Premium; Standard has none.')
@allowed([
  1
  2
  4
  8
  16
])
param messagingUnits int

@description('False: reached through private endpoints only (Premium).')
param publicAccess bool

resource namespace 'Microsoft.ServiceBus/namespaces@2024-01-01' = {
  name: name
  location: location
  tags: tags
  sku: {
    name: sku
    tier: sku
    capacity: sku == 'Premium' ? messagingUnits : null
  }
  properties: {
    disableLocalAuth: true
    minimumTlsVersion: '1.2'
    publicNetworkAccess: publicAccess ? 'Enabled' : 'Disabled'
  }
}

output id string = namespace.id
output name string = namespace.name
output hostName string = '${namespace.name}.servicebus.windows.net'
