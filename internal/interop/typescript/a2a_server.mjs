// An agent of the official A2A SDK for JavaScript, version 1, unmodified.
//
// usage: a2a_server.mjs
//
// It serves JSON-RPC in 1.0 and 0.3, and HTTP+JSON in 1.0, writes one line of JSON with
// its URL, does what python/a2a_server.py does, and ends when its input ends.
import { once } from 'node:events'
import { randomUUID } from 'node:crypto'
import express from 'express'
import { Role, TaskState } from '@a2a-js/sdk'
import {
  AgentEvent,
  DefaultPushNotificationSender,
  DefaultRequestHandler,
  InMemoryPushNotificationStore,
  InMemoryTaskStore,
} from '@a2a-js/sdk/server'
import { agentCardHandler, jsonRpcHandler, restHandler, UserBuilder } from '@a2a-js/sdk/server/express'

const textPart = (value) => ({ content: { $case: 'text', value }, metadata: undefined, filename: '', mediaType: '' })

class Teller {
  held = new Map()
  stopped = 0

  async execute(request, bus) {
    const { taskId, contextId, userMessage, task } = request
    const now = () => new Date().toISOString()
    const said = (text) => ({
      messageId: randomUUID(), role: Role.ROLE_AGENT, parts: [textPart(text)], taskId, contextId,
      metadata: undefined, extensions: [], referenceTaskIds: [],
    })
    const status = (state, text) => bus.publish(AgentEvent.statusUpdate({
      taskId, contextId, metadata: undefined,
      status: { state, message: text === undefined ? undefined : said(text), timestamp: now() },
    }))
    const artifact = (parts, more = {}) => bus.publish(AgentEvent.artifactUpdate({
      taskId, contextId, append: false, lastChunk: false, metadata: undefined, ...more,
      artifact: { artifactId: more.id ?? randomUUID(), name: 'said', description: '', parts, metadata: undefined, extensions: [] },
    }))
    const complete = (text) => {
      artifact([textPart(text)], { lastChunk: true })
      status(TaskState.TASK_STATE_COMPLETED)
    }
    const text = userMessage.parts.filter((p) => p.content?.$case === 'text').map((p) => p.content.value).join('\n')
    if (!task) {
      bus.publish(AgentEvent.task({
        id: taskId, contextId, artifacts: [], history: [userMessage], metadata: undefined,
        status: { state: TaskState.TASK_STATE_SUBMITTED, message: undefined, timestamp: now() },
      }))
    }
    const [verb] = text.split(' ', 1)
    const rest = text.slice(verb.length + 1)
    if (task) complete('got ' + text)
    else if (verb === 'say') complete(rest)
    else if (verb === 'count') {
      status(TaskState.TASK_STATE_WORKING, 'begun')
      for (let i = 0; i < Number(rest); i++) artifact([textPart(`piece ${i + 1}`)], { id: 'pieces', append: i > 0 })
      artifact([textPart('counted ' + rest)], { id: 'pieces', lastChunk: true })
      status(TaskState.TASK_STATE_COMPLETED)
    } else if (verb === 'fail') status(TaskState.TASK_STATE_FAILED, rest)
    else if (verb === 'reject') status(TaskState.TASK_STATE_REJECTED, rest)
    else if (verb === 'ask') status(TaskState.TASK_STATE_INPUT_REQUIRED, rest)
    else if (verb === 'hold') {
      status(TaskState.TASK_STATE_WORKING)
      await new Promise((resolve) => this.held.set(taskId, { resolve, contextId }))
    } else if (verb === 'stopped') complete(String(this.stopped))
    else if (verb === 'parts') {
      artifact(userMessage.parts)
      status(TaskState.TASK_STATE_COMPLETED)
    } else status(TaskState.TASK_STATE_REJECTED, 'it knows say, count, fail, reject, ask, hold, stopped, parts')
    bus.finished()
  }

  async cancelTask(taskId, bus) {
    this.stopped++
    const held = this.held.get(taskId)
    bus.publish(AgentEvent.statusUpdate({
      taskId, contextId: held?.contextId ?? '', metadata: undefined,
      status: { state: TaskState.TASK_STATE_CANCELED, message: undefined, timestamp: new Date().toISOString() },
    }))
    held?.resolve()
  }
}

const app = express()
const server = app.listen(0, '127.0.0.1')
await once(server, 'listening')
const url = `http://127.0.0.1:${server.address().port}`
const at = (path, protocolBinding, protocolVersion) => ({ url: url + path, protocolBinding, protocolVersion, tenant: '' })
const card = {
  name: 'teller', description: 'Does what it is told.', version: '1.0.0', provider: undefined,
  supportedInterfaces: [at('/rpc', 'JSONRPC', '1.0'), at('/rest', 'HTTP+JSON', '1.0'), at('/rpc', 'JSONRPC', '0.3')],
  capabilities: { streaming: true, pushNotifications: true, extensions: [] },
  securitySchemes: {}, securityRequirements: [], signatures: [],
  defaultInputModes: ['text/plain'], defaultOutputModes: ['text/plain'],
  skills: [{
    id: 'tell', name: 'Tell', description: 'Does what the text says.', tags: ['test'],
    examples: [], inputModes: [], outputModes: [], securityRequirements: [],
  }],
}
const store = new InMemoryPushNotificationStore()
const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), new Teller(), undefined, store,
  new DefaultPushNotificationSender(store))
const legacyCompat = { enabled: true }
const userBuilder = UserBuilder.noAuthentication
app.use('/.well-known/agent-card.json', agentCardHandler({ agentCardProvider: requestHandler, legacyCompat }))
app.use('/rpc', jsonRpcHandler({ requestHandler, userBuilder, legacyCompat }))
app.use('/rest', restHandler({ requestHandler, userBuilder }))
process.stdout.write(JSON.stringify({ url }) + '\n')
process.stdin.resume().on('end', () => process.exit(0))
