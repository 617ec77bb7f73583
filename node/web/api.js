// Calls of the node that serves this page. The token, if there is one, is kept by this tab alone, and goes in a
// header: never in an address.
const control = '/api/strata/v1';
const silent_ms = 30000; // the server writes something every ten seconds

class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const session = {
  token: sessionStorage.getItem('strata-token') || '',
  set(token) {
    this.token = token;
    if (token) sessionStorage.setItem('strata-token', token);
    else sessionStorage.removeItem('strata-token');
  },
};

async function request(path, { body, signal, headers = {} } = {}) {
  const options = { headers: { ...headers }, signal, cache: 'no-store', credentials: 'omit' };
  if (session.token) options.headers.Authorization = `Bearer ${session.token}`;
  if (body !== undefined) {
    options.method = 'POST';
    options.headers['Content-Type'] = 'application/json';
    options.body = JSON.stringify(body);
  }
  const response = await fetch(path, options);
  if (response.ok) return response;
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message || message;
  } catch {
    // No error of the API: the status says it.
  }
  throw new ApiError(response.status, message);
}

// Events of a stream, { type, id, data }, as they come.
async function* events(response, onBytes = () => {}) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = '';
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      onBytes();
      text += value;
      let end;
      while ((end = text.indexOf('\n\n')) >= 0) {
        const event = { type: 'message', id: '', data: '' };
        for (const line of text.slice(0, end).split('\n')) {
          const colon = line.indexOf(':');
          if (colon <= 0) continue;
          const value = line.slice(colon + 1).replace(/^ /, '');
          if (line.startsWith('event:')) event.type = value;
          else if (line.startsWith('id:')) event.id = value;
          else if (line.startsWith('data:')) event.data += value;
        }
        text = text.slice(end + 2);
        if (event.data) yield event;
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export const get = async (path) => (await request(control + path)).json();
export const post = async (path, body, signal) => (await request(control + path, { body, signal })).json();

// A call with events: onEvent(type, value) for each, returns the value of "done".
export async function call(path, body, onEvent, signal) {
  for await (const event of events(await request(control + path, { body, signal }))) {
    const value = JSON.parse(event.data);
    if (event.type === 'error') throw new ApiError(0, value.error.message);
    if (event.type === 'done') return value;
    onEvent(event.type, value);
  }
  throw new ApiError(0, 'the connection ended');
}

// Watches the cluster until `signal`; goes on by itself when the node was away.
// on.event(type, value), on.state(true or false), on.refused(error): the token does not do.
export async function watch(on, signal) {
  let last_id = '';
  let pause = 500;
  while (!signal.aborted) {
    const attempt = new AbortController();
    const stop = () => attempt.abort();
    signal.addEventListener('abort', stop);
    let timer;
    const alive = () => {
      clearTimeout(timer);
      timer = setTimeout(stop, silent_ms);
    };
    try {
      alive();
      const headers = last_id ? { 'Last-Event-ID': last_id } : {};
      const response = await request(`${control}/events`, { headers, signal: attempt.signal });
      on.state(true);
      pause = 500;
      for await (const event of events(response, alive)) {
        if (event.id) last_id = event.id;
        on.event(event.type, JSON.parse(event.data));
      }
    } catch (error) {
      if (error.status === 401 || error.status === 403) {
        on.refused(error);
        return;
      }
    } finally {
      clearTimeout(timer);
      signal.removeEventListener('abort', stop);
    }
    if (signal.aborted) return;
    on.state(false);
    await new Promise((resolve) => setTimeout(resolve, pause));
    pause = Math.min(2 * pause, 5000);
  }
}

export const chatModels = async () => (await (await request('/v1/models')).json()).data;

// Streams a chat: onPrompt({ processed, total }) while its prompt is read, onDelta({ content, reasoning }) for each piece;
// returns { usage, finish }.
export async function chat(body, onPrompt, onDelta, signal) {
  const result = { usage: null, finish: '' };
  const response = await request('/v1/chat/completions', {
    body: { ...body, stream: true, stream_options: { include_usage: true }, return_progress: true },
    signal,
  });
  for await (const event of events(response)) {
    if (event.data === '[DONE]') return result;
    const value = JSON.parse(event.data);
    if (value.error) throw new ApiError(0, value.error.message);
    if (value.usage) result.usage = value.usage;
    if (value.prompt_progress) onPrompt(value.prompt_progress);
    const choice = value.choices?.[0];
    if (!choice) continue;
    if (choice.finish_reason) result.finish = choice.finish_reason;
    const { content, reasoning_content: reasoning } = choice.delta || {};
    if (content || reasoning) onDelta({ content: content || '', reasoning: reasoning || '' });
  }
  throw new ApiError(0, 'the connection ended');
}
