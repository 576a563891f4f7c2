{{/*
What Helm can check of the agent's configuration: syntax, keys, types, words and ranges. The init container also compiles the
rules.
*/}}

{{/*
Changes of comments, of the format, and of keys that an agent applies without a restart, restart no agent. JSON sorts the
keys.
*/}}
{{- define "dra-agent.configHash" -}}
{{- $parsed := dict "config" .Values.config }}
{{- include "dra-agent.parseConfig" $parsed }}
{{- $table := $parsed.table }}
{{- include "dra-agent.dropReloaded" (dict "table" $table "keys" (.Files.Get "files/config-keys.json" | fromJson)) }}
{{- $table | toJson | sha256sum }}
{{- end }}

{{- define "dra-agent.dropReloaded" -}}
{{- range $key, $value := .table }}
{{- $rule := get $.keys ($key | replace "-" "_") }}
{{- if $rule.reload }}
{{- $_ := unset $.table $key }}
{{- else if and $rule.keys (kindIs "map" $value) }}
{{- include "dra-agent.dropReloaded" (dict "table" $value "keys" $rule.keys) }}
{{- if not $value }}
{{- $_ := unset $.table $key }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{- define "dra-agent.checkConfig" -}}
{{- /* The message has the line within `config`. */}}
{{- $parsed := dict "config" .agent.Values.config }}
{{- include "dra-agent.parseConfig" $parsed }}
{{- $table := $parsed.table }}
{{- if hasKey $table "Error" }}
{{- fail (printf "%sconfig: not TOML: %s" .where $table.Error) }}
{{- end }}
{{- $keys := .agent.Files.Get "files/config-keys.json" | fromJson }}
{{- include "dra-agent.checkTable" (dict "table" $table "keys" $keys "path" "" "where" .where) }}
{{- end }}

{{- define "dra-agent.checkTable" -}}
{{- $found := list }}
{{- range $key, $value := .table }}
{{- $name := $key | replace "-" "_" }}
{{- if not (hasKey $.keys $name) }}
{{- $known := list }}
{{- range $name, $rule := $.keys }}
{{- if not $rule.removed }}
{{- $known = append $known $name }}
{{- end }}
{{- end }}
{{- fail (printf "%sconfig: unknown key %s%s; known keys: %s" $.where $.path $key ($known | sortAlpha | join ", ")) }}
{{- end }}
{{- $found = append $found $name }}
{{- $rule := get $.keys $name }}
{{- if not $rule.removed }}
{{- include "dra-agent.checkValue" (dict "value" $value "rule" $rule "path" (printf "%s%s" $.path $key) "where" $.where) }}
{{- end }}
{{- end }}
{{- range $name, $rule := .keys }}
{{- if and $rule.required (not (has $name $found)) }}
{{- fail (printf "%sconfig: %s%s is required" $.where $.path $name) }}
{{- end }}
{{- end }}
{{- end }}

{{- define "dra-agent.checkValue" -}}
{{- $at := printf "%sconfig: %s" .where .path }}
{{- $rule := .rule }}
{{- if not (has (kindOf .value) $rule.types) }}
{{- $names := dict "bool" "true or false" "string" "text" "int64" "an integer" "float64" "a number" "slice" "a list" "map" "a table" }}
{{- $expected := list }}
{{- range $rule.types }}
{{- $expected = append $expected (get $names .) }}
{{- end }}
{{- fail (printf "%s: must be %s, not %s" $at ($expected | uniq | join " or ") (get $names (kindOf .value) | default (kindOf .value))) }}
{{- end }}
{{- if and (kindIs "string" .value) $rule.enum (not (has .value $rule.enum)) }}
{{- fail (printf "%s: %q must be one of %s" $at .value ($rule.enum | join ", ")) }}
{{- end }}
{{- if has (kindOf .value) (list "int64" "float64") }}
{{- $number := float64 .value }}
{{- if or (and (hasKey $rule "min") (lt $number (float64 $rule.min))) (and (hasKey $rule "above") (le $number (float64 $rule.above))) }}
{{- fail (printf "%s: %v is too small" $at .value) }}
{{- end }}
{{- if and (hasKey $rule "max") (gt $number (float64 $rule.max)) }}
{{- fail (printf "%s: %v is larger than %v" $at .value $rule.max) }}
{{- end }}
{{- end }}
{{- if and $rule.keys (kindIs "map" .value) }}
{{- include "dra-agent.checkTable" (dict "table" .value "keys" $rule.keys "path" (printf "%s." .path) "where" .where) }}
{{- end }}
{{- if and $rule.items (kindIs "slice" .value) }}
{{- range $index, $item := .value }}
{{- include "dra-agent.checkValue" (dict "value" $item "rule" $rule.items "path" (printf "%s[%d]" $.path $index) "where" $.where) }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The level of the log is in the file and not a variable, because agents apply a change of the file without a restart.
*/}}
{{- define "dra-agent.configFile" -}}
{{- $parsed := dict "config" .Values.config }}
{{- include "dra-agent.parseConfig" $parsed -}}
# See docs/reference/configuration.md. Environment variables of the DaemonSet override this file.
{{- if not (or (hasKey $parsed.table "log_level") (hasKey $parsed.table "log-level")) }}
log_level = {{ .Values.logLevel | quote }}
{{- end }}
{{- with .Values.config }}
{{ . }}
{{- end }}
{{- end }}

{{/* The annotation of the hook's pod with the file of an agent. */}}
{{- define "dra-agent.configAnnotation" -}}
dra-agent.internal/config{{ with .Values.pool }}.{{ . }}{{ end }}
{{- end }}

{{- define "dra-agent.configCheckLabel" -}}
{{- printf "%s-config-check" (include "dra-agent.name" . | trunc 50 | trimSuffix "-") }}
{{- end }}

{{/* A container that checks a file in the volume "config", without access to the node. */}}
{{- define "dra-agent.configCheck" -}}
name: {{ .name }}
image: {{ include "dra-agent.image" .agent | quote }}
imagePullPolicy: {{ .agent.Values.image.pullPolicy }}
args: [config, check, /etc/dra-agent/{{ .file }}]
env:
- name: DRA_AGENT_DRIVER_NAME
  value: {{ .agent.Values.driverName | quote }}
resources: {{- toYaml .agent.Values.resources | nindent 2 }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  readOnlyRootFilesystem: true
  allowPrivilegeEscalation: false
  capabilities:
    drop: [ALL]
terminationMessagePolicy: FallbackToLogsOnError
volumeMounts:
- name: config
  mountPath: /etc/dra-agent
  readOnly: true
{{- end }}
