// Calls an agent with the client of the official A2A SDK for JavaScript, version 1, unmodified.
//
// usage: a2a_client.mjs URL TOKEN [BINDING]
//
// URL is the agent's base URL, below which its card is; the agent does what
// python/a2a_server.py does. BINDING is JSONRPC or HTTP+JSON. Writes one line of JSON with
// what the client saw.
import { createServer } from 'node:http'
import { once } from 'node:events'
import { randomUUID } from 'node:crypto'
import { Role, taskStateToJSON } from '@a2a-js/sdk'
import {
  ClientFactory,
  createAuthenticatingFetchWithRetry,
  DefaultAgentCardResolver,
  JsonRpcTransportFactory,
  RestTransportFactory,
} from '@a2a-js/sdk/client'

const [url, token, binding = 'JSONRPC'] = process.argv.slice(2)
const fetchImpl = createAuthenticatingFetchWithRetry(fetch, {
  headers: async () => ({ Authorization: `Bearer ${token}` }),
  shouldRetryWithHeaders: async () => undefined,
})
const transport = binding === 'JSONRPC' ? new JsonRpcTransportFactory({ fetchImpl }) : new RestTransportFactory({ fetchImpl })
const client = await new ClientFactory({
  transports: [transport],
  cardResolver: new DefaultAgentCardResolver({ fetchImpl }),
}).createFromUrl(url.replace(/\/*$/, '/'))

const part = ($case, value, more = {}) => ({ content: { $case, value }, metadata: undefined, filename: '', mediaType: '', ...more })
const message = (parts, more = {}) => ({
  messageId: randomUUID(), role: Role.ROLE_USER, contextId: '', taskId: '', metadata: undefined,
  extensions: [], referenceTaskIds: [], ...more,
  parts: typeof parts === 'string' ? [part('text', parts)] : parts,
})
const request = (m, configuration) => ({
  tenant: '', metadata: undefined, message: typeof m === 'string' ? message(m) : m,
  configuration: { acceptedOutputModes: [], taskPushNotificationConfig: undefined, returnImmediately: false, ...configuration },
})
const words = (parts) => parts.filter((p) => p.content?.$case === 'text').map((p) => p.content.value).join('\n')
const text = (task) => task.artifacts.length ? task.artifacts.map((a) => words(a.parts)).join('\n') : words(task.status.message?.parts ?? [])
const state = (x) => taskStateToJSON(x.status.state).replace('TASK_STATE_', '').toLowerCase().replace('_', '-')
const send = (m, configuration) => client.sendMessage(request(m, configuration))
const get = (task, more = {}) => client.getTask({ tenant: '', id: task.id, ...more })
const cancel = (task) => client.cancelTask({ tenant: '', id: task.id, metadata: undefined })
const error = async (call) => {
  try {
    await call()
    return null
  } catch (e) {
    return e.name
  }
}

// A webhook: its URL, and what it got.
const calls = []
let pushed
const done = new Promise((resolve) => { pushed = resolve })
const hook = createServer((req, res) => {
  let body = ''
  req.on('data', (b) => { body += b }).on('end', () => {
    calls.push(req.headers['x-a2a-notification-token'] ?? req.headers['a2a-notification-token'] ?? '')
    res.writeHead(204).end()
    if (body.includes('COMPLETED')) pushed(true)
  })
}).listen(0, '127.0.0.1')
await once(hook, 'listening')
const hookURL = `http://127.0.0.1:${hook.address().port}/hook`
const config = (id, taskId = '') => ({ tenant: '', id, taskId, url: hookURL, token: 'tok', authentication: undefined })

const seen = {}
const said = await send('say Grüezi')
seen.send = [state(said), text(said)]

let counted
seen.stream = []
for await (const { payload: { $case, value } } of client.sendMessageStream(request('count 3'))) {
  if ($case === 'artifactUpdate') seen.stream.push(['artifact_update', words(value.artifact.parts), value.append])
  else {
    counted = $case === 'task' ? value : counted
    seen.stream.push([$case === 'task' ? 'task' : 'status_update', state(value)])
  }
}
const got = await get(counted)
seen.get = [state(got), text(got).split('\n').at(-1)]
seen.history = []
for (const historyLength of [0, 1]) seen.history.push((await get(counted, { historyLength })).history.length)

const listed = await client.listTasks({ tenant: '', contextId: said.contextId, status: 0, pageToken: '', statusTimestampAfter: undefined })
seen.list = [listed.tasks.map((t) => t.id === said.id), listed.totalSize, listed.nextPageToken]

const asked = await send('ask where to?')
const answered = await send(message('Bern', { taskId: asked.id, contextId: asked.contextId }))
seen.input = [state(asked), words(asked.status.message.parts), state(answered), text(answered), answered.id === asked.id]

const held = await send('hold', { returnImmediately: true })
let cancelled
for await (const { payload: { $case, value } } of client.resubscribeTask({ tenant: '', id: held.id })) {
  seen.subscribe ??= $case
  cancelled ??= await cancel(held)
  if ($case === 'statusUpdate') seen.subscribed = state(value)
}
seen.cancel = [state(cancelled), state(await get(held))]

const echoed = await send(message([
  part('text', 'parts'),
  part('data', { n: 1.5, list: ['é'] }),
  part('raw', Buffer.from('iVBORw==', 'base64'), { mediaType: 'image/png', filename: 'a.png' }),
  part('url', 'https://example.com/b.pdf', { mediaType: 'application/pdf', filename: 'b.pdf' }),
]))
seen.parts = echoed.artifacts.flatMap((a) => a.parts).map(({ content: { $case, value }, mediaType, filename }) => ({
  [$case]: $case === 'raw' ? Buffer.from(value).toString('base64') : value, ...(filename && { filename, mediaType }),
}))

for (const verb of ['fail', 'reject']) {
  const ended = await send(verb + ' because')
  seen[verb] = [state(ended), words(ended.status.message.parts)]
}

const missing = '00000000-0000-7000-8000-000000000000'
seen.errors = {
  get: await error(() => get({ id: missing })),
  cancel: await error(() => cancel(said)),
  send: await error(() => send(message('say more', { taskId: missing }))),
  over: await error(() => send(message('say more', { taskId: said.id, contextId: said.contextId }))),
}

await send('say pushed', { returnImmediately: true, taskPushNotificationConfig: config('one') })
seen.push = await done
seen.tokens = [...new Set(calls)]

const open = await send('hold', { returnImmediately: true })
const two = await client.createTaskPushNotificationConfig(config('two', open.id))
const one = await client.getTaskPushNotificationConfig({ tenant: '', taskId: open.id, id: two.id })
const many = async () => (await client.listTaskPushNotificationConfig({ tenant: '', taskId: open.id, pageSize: 0, pageToken: '' })).configs.length
const before = await many()
await client.deleteTaskPushNotificationConfig({ tenant: '', taskId: open.id, id: two.id })
seen.configs = [two.id, one.url === hookURL, before, await many()]
await cancel(open)
console.log(JSON.stringify(seen))
process.exit(0)
