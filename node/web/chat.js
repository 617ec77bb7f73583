// A chat with a loaded model. Conversations are kept in this browser, and nowhere else.
import DOMPurify from 'dompurify';
import { marked } from 'marked';
import { useEffect, useRef, useState } from 'preact/hooks';
import { html } from 'htm/preact';
import { chat, chatModels } from './api.js';
import { query } from './parts.js';
import { text } from './strings.js';

const words = text.chat;
const key = 'strata-conversations';
const conversations_max = 100;
const redraw_ms = 80; // of an answer that comes

// HTML in an answer is shown as it is written.
const escaped = { '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;', "'": '&#39;' };
marked.use({ renderer: { html: ({ text: tags }) => tags.replace(/[&<>"']/g, (c) => escaped[c]) } });

DOMPurify.addHook('afterSanitizeAttributes', (node) => {
  if (node.tagName !== 'A') return;
  node.setAttribute('target', '_blank');
  node.setAttribute('rel', 'noopener noreferrer');
});

// A model writes Markdown, which is sanitised: no images from elsewhere, styles or forms.
function Markdown({ source }) {
  const at = useRef();
  useEffect(() => {
    const dirty = marked.parse(source, { gfm: true, breaks: true, async: false });
    at.current.replaceChildren(DOMPurify.sanitize(dirty, {
      RETURN_DOM_FRAGMENT: true,
      FORBID_TAGS: ['img', 'style', 'form', 'input', 'button', 'textarea', 'select', 'svg', 'math', 'video', 'audio'],
      FORBID_ATTR: ['style', 'class', 'id', 'name'],
    }));
    if (!navigator.clipboard) return; // not over plain HTTP from elsewhere
    for (const pre of at.current.querySelectorAll('pre')) {
      const button = document.createElement('button');
      button.textContent = text.copy;
      button.className = 'copy';
      button.onclick = async () => {
        await navigator.clipboard.writeText(pre.querySelector('code')?.textContent || '');
        button.textContent = text.copied;
      };
      pre.append(button);
    }
  }, [source]);
  return html`<div class="markdown" ref=${at}></div>`;
}

const fresh = (model = '') => ({
  id: crypto.getRandomValues(new Uint32Array(2)).join('-'),
  model,
  system: '',
  temperature: '',
  top_p: '',
  max_tokens: '',
  seed: '',
  schema: '',
  messages: [],
});

const isConversation = (value) => value && typeof value.id === 'string' && Array.isArray(value.messages)
  && value.messages.every((m) => (m.role === 'user' || m.role === 'assistant') && typeof m.content === 'string');

// The storage, or a file, may hold anything: only the fields of a conversation are taken.
function conversationOf(value) {
  const made = { ...fresh(), id: value.id };
  for (const name of ['model', 'system', 'temperature', 'top_p', 'max_tokens', 'seed', 'schema']) {
    if (typeof value[name] === 'string') made[name] = value[name];
  }
  made.messages = value.messages.map((m) => ({
    role: m.role,
    content: m.content,
    reasoning: typeof m.reasoning === 'string' ? m.reasoning : '',
    problem: typeof m.problem === 'string' ? m.problem : '',
    stats: m.stats && typeof m.stats === 'object' ? {
      tokens: Number(m.stats.tokens) || 0, rate: Number(m.stats.rate) || 0, first: Number(m.stats.first) || 0,
    } : null,
  }));
  return made;
}

function parse(json) {
  try {
    const list = JSON.parse(json);
    return Array.isArray(list) ? list.filter(isConversation).map(conversationOf) : [];
  } catch {
    return [];
  }
}

// Where the browser has no more room, the oldest conversations go.
function store(list) {
  for (let n = Math.min(list.length, conversations_max); n > 0; n -= 1) {
    try {
      localStorage.setItem(key, JSON.stringify(list.slice(0, n)));
      return;
    } catch {
      // Full: one less.
    }
  }
  localStorage.removeItem(key);
}

const titleOf = (conversation) => conversation.messages[0]?.content.slice(0, 60) || words.untitled;

function Message({ message, isLast, isRunning, onAgain, onEdit }) {
  const isUser = message.role === 'user';
  const stats = message.stats && words.stats(message.stats);
  return html`<article class=${`message ${message.role}`}>
    ${message.reasoning && html`<details open=${isRunning && !message.content}><summary>${words.thoughts}</summary><p class="plain">${message.reasoning}</p></details>`}
    ${isUser ? html`<p class="plain">${message.content}</p>` : html`<${Markdown} source=${message.content} />`}
    ${isRunning && !message.content && !message.reasoning && html`<p class="small">${message.prompt ? words.reading(message.prompt) : words.waiting}</p>`}
    ${message.problem && html`<p class="problem">${words.interrupted(message.problem)}</p>`}
    <p class="small">${stats}
      ${!isRunning && isUser && html` <button onClick=${onEdit}>${words.edit}</button>`}
      ${!isRunning && !isUser && isLast && html` <button onClick=${onAgain}>${words.again}</button>`}</p>
  </article>`;
}

export function Chat({ connected, models: cluster_models }) {
  const [list, setList] = useState(() => parse(localStorage.getItem(key) || '[]'));
  const [current, setCurrent] = useState(() => list[0] || fresh());
  const [models, setModels] = useState(null);
  const [draft, setDraft] = useState('');
  const [running, setRunning] = useState(null); // ends the answer that comes
  const [problem, setProblem] = useState('');
  const end = useRef();
  const stay = useRef(true); // at the end of the conversation

  // Which models there are changes when one is loaded, and when the node is back.
  const loaded = (cluster_models || []).map((model) => `${model.id}${model.state}`).join();
  useEffect(() => {
    let gone = false;
    chatModels().then((data) => {
      if (gone) return;
      setModels(data.map((model) => model.id));
      const asked = query().get('model');
      setCurrent((old) => (asked || !data.some((model) => model.id === old.model)
        ? { ...old, model: asked || data[0]?.id || '' } : old));
    }, () => {});
    return () => { gone = true; };
  }, [connected, loaded]);
  useEffect(() => {
    if (stay.current) end.current?.scrollIntoView({ block: 'nearest' });
  }, [current.messages]);
  useEffect(() => () => running?.abort(), [running]);

  const save = (conversation) => {
    setCurrent(conversation);
    setList((old) => {
      const rest = old.filter((each) => each.id !== conversation.id);
      const next = conversation.messages.length > 0 ? [conversation, ...rest].slice(0, conversations_max) : rest;
      store(next);
      return next;
    });
  };
  const set = (name) => (event) => setCurrent((old) => ({ ...old, [name]: event.target.value }));

  const ask = async (conversation) => {
    const body = {
      model: conversation.model,
      messages: conversation.messages.map(({ role, content }) => ({ role, content })),
    };
    if (conversation.system.trim()) body.messages.unshift({ role: 'system', content: conversation.system });
    for (const name of ['temperature', 'top_p', 'max_tokens', 'seed']) {
      if (conversation[name] !== '') body[name] = Number(conversation[name]);
    }
    if (conversation.schema.trim()) {
      try {
        const schema = JSON.parse(conversation.schema);
        body.response_format = { type: 'json_schema', json_schema: { name: 'answer', schema } };
      } catch {
        setCurrent(conversation);
        setProblem(words.wrongSchema);
        return;
      }
    }
    const stop = new AbortController();
    setRunning(stop);
    setProblem('');
    stay.current = true;
    const answer = { role: 'assistant', content: '', reasoning: '', problem: '', stats: null, prompt: null };
    const shown = () => ({ ...conversation, messages: [...conversation.messages, { ...answer }] });
    const began = performance.now();
    let first = 0;
    let pieces = 0;
    let timer = 0;
    save(conversation); // what was asked stays, whatever becomes of the answer
    setCurrent(shown());
    const stats = (result) => {
      const seconds = (performance.now() - began - first) / 1000;
      const tokens = result?.usage?.completion_tokens || pieces;
      return { tokens, first, rate: pieces > 1 && seconds > 0 ? (tokens - 1) / seconds : 0 };
    };
    const redraw = () => {
      timer ||= setTimeout(() => {
        timer = 0;
        if (pieces > 0) answer.stats = stats(null);
        setCurrent((old) => (old.id === conversation.id ? shown() : old));
      }, redraw_ms);
    };
    try {
      const result = await chat(body, (prompt) => {
        answer.prompt = prompt;
        redraw();
      }, ({ content, reasoning }) => {
        if (pieces === 0) first = performance.now() - began;
        pieces += 1;
        answer.content += content;
        answer.reasoning += reasoning;
        redraw();
      }, stop.signal);
      answer.stats = stats(result);
      if (result.finish === 'length') answer.problem = words.cut;
    } catch (error) {
      if (pieces > 0) answer.stats = stats(null);
      if (!stop.signal.aborted) answer.problem = error.message;
    }
    clearTimeout(timer);
    if (answer.content || answer.reasoning) save(shown());
    else {
      save(conversation);
      setProblem(answer.problem);
    }
    setRunning(null);
  };

  const send = (event) => {
    event?.preventDefault();
    const content = draft.trim();
    if (!content || running || !current.model) return;
    const next = { ...current, messages: [...current.messages, { role: 'user', content }] };
    setDraft('');
    ask(next);
  };
  const again = () => ask({ ...current, messages: current.messages.slice(0, -1) });
  const edit = (i) => {
    setDraft(current.messages[i].content);
    setCurrent({ ...current, messages: current.messages.slice(0, i) });
    document.getElementById('draft').focus();
  };
  const open = (conversation) => {
    running?.abort();
    setCurrent(conversation);
    setProblem('');
  };
  const remove = () => {
    if (!confirm(words.removeSure)) return;
    running?.abort();
    const rest = list.filter((each) => each.id !== current.id);
    store(rest);
    setList(rest);
    setCurrent(rest[0] || fresh(current.model));
  };
  const exportAll = () => {
    const link = document.createElement('a');
    link.href = URL.createObjectURL(new Blob([JSON.stringify(list, null, 1)], { type: 'application/json' }));
    link.download = 'strata-conversations.json';
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  const importAll = async (event) => {
    const found = parse((await event.target.files[0]?.text()) || '');
    event.target.value = '';
    if (found.length === 0) return setProblem(words.importFailed);
    const ids = new Set(found.map((each) => each.id));
    const next = [...found, ...list.filter((each) => !ids.has(each.id))].slice(0, conversations_max);
    store(next);
    setList(next);
    open(next[0]);
  };
  const onScroll = (event) => {
    const box = event.target;
    stay.current = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
  };

  return html`<h1 class="hidden">${words.heading}</h1><div class="chat">
    <aside aria-label=${words.conversations}>
      <p class="actions"><button class="main" onClick=${() => open(fresh(current.model))}>${words.fresh}</button>
        <button onClick=${exportAll} disabled=${list.length === 0}>${words.exportAll}</button>
        <label class="button">${words.importAll}<input class="hidden" type="file" accept="application/json" onChange=${importAll} /></label></p>
      <ul>${list.map((each) => html`<li key=${each.id}><button class="pick" aria-current=${each.id === current.id ? 'true' : undefined} onClick=${() => open(each)}>${titleOf(each)}</button></li>`)}</ul>
    </aside>
    <section class="talk">
      <div class="fields">
        <label>${words.model}<select value=${current.model} onChange=${set('model')}>${(models || []).map((id) => html`<option key=${id} value=${id}>${id}</option>`)}</select></label>
        <details class="settings"><summary>${words.settings}</summary>
          <label>${words.system}<textarea rows="3" value=${current.system} onInput=${set('system')}></textarea></label>
          <div class="fields">
            <label>${words.temperature}<input type="number" min="0" step="0.1" placeholder=${words.defaultValue} value=${current.temperature} onInput=${set('temperature')} /></label>
            <label>${words.topP}<input type="number" min="0" max="1" step="0.05" placeholder=${words.defaultValue} value=${current.top_p} onInput=${set('top_p')} /></label>
            <label>${words.maxTokens}<input type="number" min="1" placeholder=${words.defaultValue} value=${current.max_tokens} onInput=${set('max_tokens')} /></label>
            <label>${words.seed}<input type="number" placeholder=${words.defaultValue} value=${current.seed} onInput=${set('seed')} /></label>
          </div>
          <label>${words.schema}<textarea rows="3" spellcheck="false" value=${current.schema} onInput=${set('schema')}></textarea></label>
          <button onClick=${remove} disabled=${current.messages.length === 0}>${words.remove}</button></details>
      </div>
      ${models && models.length === 0 && html`<p class="card">${words.noModels}</p>`}
      <div class="messages" role="log" aria-label=${words.log} tabindex="0" onScroll=${onScroll}>
        ${current.messages.map((message, i) => html`<${Message} key=${i} message=${message} isLast=${i === current.messages.length - 1}
          isRunning=${Boolean(running) && i === current.messages.length - 1} onAgain=${again} onEdit=${() => edit(i)} />`)}
        <div ref=${end}></div>
      </div>
      ${problem && html`<p class="problem" role="alert">${problem}${' '}
        ${current.messages.at(-1)?.role === 'user' && html`<button onClick=${() => ask(current)}>${words.again}</button>`}</p>`}
      <form class="send" onSubmit=${send}>
        <label class="hidden" for="draft">${words.message}</label>
        <textarea id="draft" rows="3" placeholder=${words.placeholder} value=${draft} onInput=${(e) => setDraft(e.target.value)}
          onKeyDown=${(e) => { if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) send(e); }}></textarea>
        ${running ? html`<button type="button" class="main" onClick=${() => running.abort()}>${words.stop}</button>`
          : html`<button class="main" disabled=${!draft.trim() || !current.model}>${words.send}</button>`}
      </form>
    </section>
  </div>`;
}
