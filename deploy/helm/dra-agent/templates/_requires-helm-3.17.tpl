{{/*
The name of this file is the message of older versions of Helm, which do not have fromToml and name the file that uses it:
"parse error at (dra-agent/templates/_requires-helm-3.17.tpl:9): function "fromToml" not defined". Helm parses all templates
before it runs one, so no template can report its version. v3.17.0 is the first release with the function (helm/helm#12026,
commit f550eda6e).

Sets `table` of a dict with `config` to the content of `config`. If it is not TOML, the table has the message as Error.
*/}}
{{- define "dra-agent.parseConfig" -}}{{- $_ := set . "table" (fromToml .config) }}{{- end }}
