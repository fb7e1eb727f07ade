// With vnetEnabled: the virtual network, and a private endpoint each for Service Bus, the host's blobs, the orders, the vault.

param networkName string
param securityGroupName string
param endpointPrefix string
param location string
param tags object
param octets string
param namespaceId string
param hostAccountId string
param stateAccountId string

@description('Empty without a vault of our own.')
param vaultId string

module network 'network.bicep' = {
  name: 'network'
  params: {
    name: networkName
    securityGroupName: securityGroupName
    location: location
    tags: tags
    octets: octets
  }
}

module serviceBus 'private-endpoint.bicep' = {
  name: 'endpoint-service-bus'
  params: {
    name: '${endpointPrefix}service-bus'
    location: location
    tags: tags
    networkId: network.outputs.id
    subnetId: network.outputs.endpointsSubnetId
    serviceId: namespaceId
    groupId: 'namespace'
    zoneName: 'privatelink.servicebus.windows.net'
  }
}

module blobs 'private-endpoint.bicep' = {
  name: 'endpoint-host-blobs'
  params: {
    name: '${endpointPrefix}host-blobs'
    location: location
    tags: tags
    networkId: network.outputs.id
    subnetId: network.outputs.endpointsSubnetId
    serviceId: hostAccountId
    groupId: 'blob'
    zoneName: 'privatelink.blob.${environment().suffixes.storage}'
  }
}

module state 'private-endpoint.bicep' = {
  name: 'endpoint-state-table'
  params: {
    name: '${endpointPrefix}state-table'
    location: location
    tags: tags
    networkId: network.outputs.id
    subnetId: network.outputs.endpointsSubnetId
    serviceId: stateAccountId
    groupId: 'table'
    zoneName: 'privatelink.table.${environment().suffixes.storage}'
  }
}

module vault 'private-endpoint.bicep' = if (!empty(vaultId)) {
  name: 'endpoint-vault'
  params: {
    name: '${endpointPrefix}vault'
    location: location
    tags: tags
    networkId: network.outputs.id
    subnetId: network.outputs.endpointsSubnetId
    serviceId: vaultId
    groupId: 'vault'
    zoneName: 'privatelink.vaultcore.azure.net'
  }
}

output functionsSubnetId string = network.outputs.functionsSubnetId
