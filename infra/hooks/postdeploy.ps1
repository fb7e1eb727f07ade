# What now is where, and what to try first.
Write-Host @"
The functions run in $($env:SERVICE_ORDERS_NAME), resource group $($env:AZURE_RESOURCE_GROUP).
Service Bus: $($env:ServiceBus__fullyQualifiedNamespace)
State store: $($env:SAS_TABLES__endpoint)
Response queues: $($env:SAS_RESPONSE_QUEUES)
Rights on Service Bus take up to a minute to spread: the first messages may wait that long.
Look at the workbook "Orders: Scheduler Agent Supervisor" in the resource group, and at the alerts.
"@
