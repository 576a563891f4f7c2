{{/* Names and labels that several objects use. */}}

{{- define "dra-agent.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "dra-agent.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" }}
{{- else if contains (include "dra-agent.name" .) .Release.Name }}
{{- .Release.Name | trunc 63 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "dra-agent.name" .) | trunc 63 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{/* Roles and policies are cluster-scoped: two releases with the same name in different namespaces must not share them. */}}
{{- define "dra-agent.clusterName" -}}
{{- if eq .Release.Namespace (include "dra-agent.fullname" .) }}
{{- include "dra-agent.fullname" . }}
{{- else }}
{{- printf "%s-%s" .Release.Namespace (include "dra-agent.fullname" .) }}
{{- end }}
{{- end }}

{{- define "dra-agent.serviceAccount" -}}
{{- if .Values.serviceAccount.name }}
{{- .Values.serviceAccount.name }}
{{- else if .Values.serviceAccount.create }}
{{- include "dra-agent.fullname" . }}
{{- else }}
{{- fail "serviceAccount.name: set the ServiceAccount for the agent, or let the chart create one (serviceAccount.create)" }}
{{- end }}
{{- end }}

{{- define "dra-agent.selectorLabels" -}}
app.kubernetes.io/name: {{ include "dra-agent.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "dra-agent.labels" -}}
{{ include "dra-agent.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "dra-agent.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) }}
{{- end }}
{{- end }}

{{/* The affinity from the values. Each of its terms also excludes nodes with the labels in avoidNodeLabels. */}}
{{- define "dra-agent.affinity" -}}
{{- $avoid := list }}
{{- range $key, $value := .Values.avoidNodeLabels }}
{{- $avoid = append $avoid (dict "key" $key "operator" "NotIn" "values" (list $value)) }}
{{- end }}
{{- $affinity := deepCopy .Values.affinity }}
{{- if $avoid }}
{{- $node := dig "nodeAffinity" (dict) $affinity }}
{{- $required := dig "requiredDuringSchedulingIgnoredDuringExecution" (dict) $node }}
{{- $terms := list }}
{{- range $term := dig "nodeSelectorTerms" (list (dict)) $required }}
{{- $expressions := concat (dig "matchExpressions" (list) $term) $avoid }}
{{- $terms = append $terms (merge (dict "matchExpressions" $expressions) $term) }}
{{- end }}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) }}
{{- $_ := set $affinity "nodeAffinity" $node }}
{{- end }}
{{- if $affinity }}{{ toYaml $affinity }}{{ end }}
{{- end }}
