// With vnetEnabled: a virtual network, and in it a private endpoint for each service. A private DNS zone makes the
// service's usual name lead there.

param name string
param securityGroupName string
param location string
param tags object

@description('First two octets of the network\'s addresses, such as 10.20: a /16, with a /24 for each subnet.')
@minLength(3)
@maxLength(7)
param octets string

param namespaceId string
param hostAccountId string
param stateAccountId string

@description('Empty without a vault of our own.')
param vaultId string

var suffix = environment().suffixes.storage
var services = filter([
  { name: 'service-bus', id: namespaceId, side: 'namespace', zone: 'privatelink.servicebus.windows.net' }
  { name: 'host-blobs', id: hostAccountId, side: 'blob', zone: 'privatelink.blob.${suffix}' }
  { name: 'state-table', id: stateAccountId, side: 'table', zone: 'privatelink.table.${suffix}' }
  { name: 'vault', id: vaultId, side: 'vault', zone: 'privatelink.vaultcore.azure.net' }
], service => !empty(service.id))

resource securityGroup 'Microsoft.Network/networkSecurityGroups@2024-07-01' = {
  name: securityGroupName
  location: location
  tags: tags
  properties: {
    securityRules: [
      {
        name: 'nothing-from-the-internet'
        properties: {
          access: 'Deny'
          direction: 'Inbound'
          priority: 4000
          protocol: '*'
          sourceAddressPrefix: 'Internet'
          sourcePortRange: '*'
          destinationAddressPrefix: '*'
          destinationPortRange: '*'
        }
      }
    ]
  }
}

resource network 'Microsoft.Network/virtualNetworks@2024-07-01' = {
  name: name
  location: location
  tags: tags
  properties: {
    addressSpace: {
      addressPrefixes: [
        '${octets}.0.0/16'
      ]
    }
    subnets: [
      {
        name: 'functions'
        properties: {
          addressPrefix: '${octets}.0.0/24'
          networkSecurityGroup: { id: securityGroup.id }
          delegations: [
            {
              name: 'functions'
              properties: {
                serviceName: 'Microsoft.App/environments'
              }
            }
          ]
        }
      }
      {
        name: 'endpoints'
        properties: {
          addressPrefix: '${octets}.1.0/24'
          privateEndpointNetworkPolicies: 'Enabled'
          networkSecurityGroup: { id: securityGroup.id }
        }
      }
    ]
  }
}

resource zones 'Microsoft.Network/privateDnsZones@2024-06-01' = [for service in services: {
  name: service.zone
  location: 'global'
  tags: tags
}]

resource links 'Microsoft.Network/privateDnsZones/virtualNetworkLinks@2024-06-01' = [for (service, index) in services: {
  parent: zones[index]
  name: 'network'
  location: 'global'
  tags: tags
  properties: {
    registrationEnabled: false
    virtualNetwork: { id: network.id }
  }
}]

resource endpoints 'Microsoft.Network/privateEndpoints@2024-07-01' = [for service in services: {
  name: 'pep-${service.name}'
  location: location
  tags: tags
  properties: {
    subnet: {
      id: '${network.id}/subnets/endpoints'
    }
    privateLinkServiceConnections: [
      {
        name: service.side
        properties: {
          privateLinkServiceId: service.id
          groupIds: [service.side]
        }
      }
    ]
  }
}]

resource zoneGroups 'Microsoft.Network/privateEndpoints/privateDnsZoneGroups@2024-07-01' = [for (service, index) in services: {
  parent: endpoints[index]
  name: 'default'
  properties: {
    privateDnsZoneConfigs: [
      {
        name: service.side
        properties: {
          privateDnsZoneId: zones[index].id
        }
      }
    ]
  }
}]

output functionsSubnetId string = '${network.id}/subnets/functions'
