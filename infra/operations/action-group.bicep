// Who hears of alerts.

param name string
param tags object

@description('Mail addresses; none leaves the alerts in the portal only.')
param mailAddresses array

@secure()
@description('https addresses that alerts are posted to, with commas between; empty: none.')
param webhookAddresses string

var webhooks = empty(webhookAddresses) ? [] : split(replace(webhookAddresses, ' ', ''), ',')

resource actionGroup 'Microsoft.Insights/actionGroups@2023-01-01' = {
  name: name
  location: 'global'
  tags: tags
  properties: {
    enabled: true
    groupShortName: 'orders'
    emailReceivers: [for (address, index) in mailAddresses: {
      name: 'operator-${index}'
      emailAddress: address
      useCommonAlertSchema: true
    }]
    webhookReceivers: [for (address, index) in webhooks: {
      name: 'operator-webhook-${index}'
      serviceUri: address
      useCommonAlertSchema: true
    }]
  }
}

output id string = actionGroup.id
