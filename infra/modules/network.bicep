// A virtual network for private endpoints: one subnet for the functions, one for the endpoints.

param name string
param securityGroupName string
param location string
param tags object

@description('First two octets of the network\'s addresses, such as 10.20: a /16, with a /24 for each subnet.')
@minLength(3)
@maxLength(7)
param octets string

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
          networkSecurityGroup: {
            id: securityGroup.id
          }
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
          networkSecurityGroup: {
            id: securityGroup.id
          }
        }
      }
    ]
  }
}

output id string = network.id
output functionsSubnetId string = '${network.id}/subnets/functions'
output endpointsSubnetId string = '${network.id}/subnets/endpoints'
