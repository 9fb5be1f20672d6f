{{- define "longshore.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 55 | trimSuffix "-" -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- printf "%s-operator" .Release.Name | trunc 55 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s-operator" .Release.Name .Chart.Name | trunc 55 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Of the leader. Operators for all namespaces share one; each of those for one namespace has its own. */}}
{{- define "longshore.lease" -}}
{{- if .Values.watchNamespace -}}
{{- include "longshore.fullname" . -}}
{{- else -}}
longshore-operator
{{- end -}}
{{- end -}}

{{- define "longshore.selectorLabels" -}}
app.kubernetes.io/name: longshore-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "longshore.labels" -}}
{{ include "longshore.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: longshore
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "longshore.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "longshore.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is required when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* The operator's image, by digest if one is given. */}}
{{- define "longshore.image" -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" .Values.image.repository (.Values.image.tag | default .Chart.AppVersion) -}}
{{- end -}}
{{- end -}}

{{/*
Whether the cluster has ValidatingAdmissionPolicies: not empty if so. Where Helm does not ask the cluster (`helm template`),
it knows no kinds, but a version.
*/}}
{{- define "longshore.hasPolicies" -}}
{{- if or (.Capabilities.APIVersions.Has "admissionregistration.k8s.io/v1/ValidatingAdmissionPolicy") (semverCompare ">=1.30-0" .Capabilities.KubeVersion.Version) -}}true{{- end -}}
{{- end -}}

{{/* User and group of all pods: a number, or "assigned". */}}
{{- define "longshore.podUser" -}}
{{- if .Values.podUser -}}
{{- if kindIs "string" .Values.podUser }}{{ .Values.podUser }}{{ else }}{{ int64 .Values.podUser }}{{ end -}}
{{- else if .Capabilities.APIVersions.Has "security.openshift.io/v1" -}}
assigned
{{- else -}}
1000
{{- end -}}
{{- end -}}

{{/* Of the operator's pods, and of the chart test. */}}
{{- define "longshore.podSecurity" -}}
runAsNonRoot: true
{{- if ne (include "longshore.podUser" .) "assigned" }}
runAsUser: {{ include "longshore.podUser" . }}
runAsGroup: {{ include "longshore.podUser" . }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/*
Ports on which the API server answers: those of the values, and those that this cluster's has behind its service.
*/}}
{{- define "longshore.apiServerPorts" -}}
{{- $ports := list -}}
{{- range .Values.jobNetworkPolicies.apiServerPorts -}}
{{- $ports = append $ports (int .) -}}
{{- end -}}
{{- if .Values.jobNetworkPolicies.lookUpApiServer -}}
{{- range (lookup "discovery.k8s.io/v1" "EndpointSlice" "default" "kubernetes").ports -}}
{{- $ports = append $ports (int .port) -}}
{{- end -}}
{{- end -}}
{{- $ports | uniq | toJson -}}
{{- end -}}

{{/* Whether jobs have to be admitted: not empty if something is limited. */}}
{{- define "longshore.admits" -}}
{{- if or .Values.admission.capacity .Values.admission.quotas -}}true{{- end -}}
{{- end -}}

{{/* Whether jobs may be in queues of Kueue's: not empty if so. */}}
{{- define "longshore.usesKueue" -}}
{{- if and .Values.kueue.enabled (not .Values.watchNamespace) -}}true{{- end -}}
{{- end -}}

{{/* Rights over jobs and their children; in the watched namespace, or in all. */}}
{{- define "longshore.operatorRules" -}}
- apiGroups: [longshore.dev]
  resources: [rljobs]
  verbs: [get, list, watch, delete]
- apiGroups: [longshore.dev]
  resources: [rljobs/status]
  verbs: [patch]
# Owner references that block their owner's deletion need this where the cluster checks it.
- apiGroups: [longshore.dev]
  resources: [rljobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete, patch]
- apiGroups: [""]
  resources: [configmaps, persistentvolumeclaims]
  verbs: [get, create, patch]
# What a job owns comes back when somebody deletes it, so the operator follows it (metadata of objects with the label of jobs).
- apiGroups: [""]
  resources: [services, serviceaccounts]
  verbs: [get, list, watch, create, patch]
# The Ray token of a job is created and never read: no right to see or change any Secret.
- apiGroups: [""]
  resources: [secrets]
  verbs: [create]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
# Coordinators get a part of the rights above, so neither "escalate" nor "bind" is needed.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch]
{{- if include "longshore.usesKueue" . }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
- apiGroups: [kueue.x-k8s.io]
  resources: [resourceflavors, workloadpriorityclasses]
  verbs: [get]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [get]
{{- end }}
{{- range .Values.podGroups }}
- apiGroups: [{{ get (dict "Volcano" "scheduling.volcano.sh" "SchedulerPlugins" "scheduling.x-k8s.io" "Kubernetes" "scheduling.k8s.io") . }}]
  resources: [podgroups]
  verbs: [get, create, delete]
{{- end }}
{{- if .Values.jobNetworkPolicies.enabled }}
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch]
{{- end }}
{{- end -}}

{{/*
A text with expressions for Prometheus, in which every metric of operators is that of this one. Where the chart's monitor reads
the metrics, they name its service: other operators have others, and what a pod of a job exports has none.
*/}}
{{- define "longshore.ownMetrics" -}}
{{- if .root.Values.monitoring.serviceMonitor.enabled -}}
{{- $own := printf "namespace=%q,service=\"%s-metrics\"" .root.Release.Namespace (include "longshore.fullname" .root) -}}
{{- if .isJson -}}
{{- $own = $own | replace "\"" "\\\"" -}}
{{- end -}}
{{- $some := regexReplaceAll `(longshore_operator_\w+)\{` .text (printf `${1}{%s,` $own) -}}
{{- regexReplaceAll `(longshore_operator_\w+)([^\w{]|$)` $some (printf `${1}{%s}${2}` $own) -}}
{{- else -}}
{{- .text -}}
{{- end -}}
{{- end -}}
