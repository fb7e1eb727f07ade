# Before anything is created: has every setting without a default been given? See preprovision.sh.
$ErrorActionPreference = 'Stop'
$text = Get-Content -Raw (Join-Path $PSScriptRoot '../main.parameters.json')
$names = [regex]::Matches($text, '\$\{([A-Z][A-Z0-9_]*)\}') | ForEach-Object { $_.Groups[1].Value } | Sort-Object -Unique
$names = $names | Where-Object { $_ -notmatch '^(AZURE_|SAS_PRINCIPAL_)' }
foreach ($name in $names) {
    $value = [Environment]::GetEnvironmentVariable($name)
    if ($name -like '*_URL' -and $value -like 'http://*') {
        Write-Error "$name=${value}: give an https address; in Azure nothing travels in clear"
    }
}
$missing = @($names | Where-Object { -not [Environment]::GetEnvironmentVariable($_) })
if ($missing.Count -gt 0) {
    $hints = ($missing | ForEach-Object { "    azd env set $_ ..." }) -join "`n"
    Write-Error "These settings are missing: $($missing -join ' ')`n$hints"
}
