// Calls an MCP server with a client of the official SDKs for TypeScript, unmodified: 1 is @modelcontextprotocol/sdk,
// which speaks the handshake revisions, and 2 @modelcontextprotocol/client.
//
// usage: mcp_client.mjs 1|2 [--legacy] [--no-input] URL [TOKEN]
//        mcp_client.mjs 1|2 [--legacy] [--no-input] -- COMMAND [ARGUMENT...]
//
// The options, the steps that it reads and the lines that it writes are those of python/mcp_client.py. 1 does not
// tell the version over stdio, and loses progress messages that come together with the result. 2 says the code of its
// own error where HTTP has a status like 404.
import { createInterface } from 'node:readline'

const [sdk, ...args] = process.argv.slice(2)
const options = []
while (['--legacy', '--no-input'].includes(args[0])) options.push(args.shift())
const two = sdk === '2'
const [client, stdio, http, types] = await Promise.all((two
  ? ['client', 'client/stdio', 'client']
  : ['client/index.js', 'client/stdio.js', 'client/streamableHttp.js', 'types.js'].map((m) => 'sdk/' + m)
).map((m) => import('@modelcontextprotocol/' + m)))

const say = (what) => console.log(JSON.stringify(what))
const input = !options.includes('--no-input')
const c = new client.Client({ name: 'mcp_client', version: '1.0.0' }, {
  capabilities: input ? { elicitation: {} } : {},
  ...(two && { versionNegotiation: { mode: options.includes('--legacy') ? 'legacy' : 'auto' } }),
})

let answer
let changed
const change = new Promise((resolve) => { changed = resolve })
const asked = async ({ params }) => {
  say({ asked: params.message, schema: params.requestedSchema })
  return answer ?? { action: 'decline' }
}
if (input) c.setRequestHandler(two ? 'elicitation/create' : types.ElicitRequestSchema, asked)
const toolsChanged = two ? 'notifications/tools/list_changed' : types.ToolListChangedNotificationSchema
c.setNotificationHandler(toolsChanged, () => changed())

let transport
if (args[0] === '--') {
  transport = new stdio.StdioClientTransport({ command: args[1], args: args.slice(2) })
} else {
  const [url, token] = args
  const headers = token ? { Authorization: `Bearer ${token}` } : {}
  transport = new http.StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } })
}
await c.connect(transport)
say({
  connected: two ? c.getNegotiatedProtocolVersion() : transport.protocolVersion ?? null, server: c.getServerVersion(),
  tools_change: c.getServerCapabilities()?.tools?.listChanged ?? false,
})

const verbs = {
  async list() {
    const tools = []
    let cursor
    do {
      const page = await c.listTools(cursor && { cursor })
      tools.push(...page.tools)
      cursor = page.nextCursor
    } while (cursor)
    return { tools }
  },
  async call({ name, arguments: given = {}, meta: _meta, progress, cancel, answer: reply }) {
    answer = reply
    const stop = new AbortController()
    const onprogress = (p) => {
      say({ progress: p.progress, message: p.message })
      if (cancel) stop.abort('not wanted')
    }
    const how = { signal: stop.signal, timeout: 300_000, ...((progress || cancel) && { onprogress }) }
    const params = { name, arguments: given, ...(_meta && { _meta }) }
    try {
      const got = await (two ? c.callTool(params, how) : c.callTool(params, undefined, how))
      const { content, structuredContent: structured = null, isError: error = false, _meta: meta = null } = got
      return { content, structured, error, meta }
    } catch (e) {
      if (stop.signal.aborted) return { cancelled: true }
      throw e
    }
  },
  async read({ uri }) {
    return { contents: (await c.readResource({ uri })).contents }
  },
  async watch() {
    if (two && c.getNegotiatedProtocolVersion() >= '2026-07-28') await c.listen({ toolsListChanged: true })
    say({ watching: true })
    await change
    return {}
  },
}
for await (const line of createInterface({ input: process.stdin })) {
  const step = JSON.parse(line)
  let saw
  try {
    saw = await verbs[step.do](step)
  } catch (e) {
    if (e.code === undefined) throw e
    saw = { failed: { code: e.code, message: e.message } }
  }
  say({ done: step.do, ...saw })
}
await c.close()
process.exit(0)
