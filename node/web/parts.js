// The parts that several views have in common, and the calls behind them.
import { useState } from 'preact/hooks';
import { html } from 'htm/preact';
import { call } from './api.js';
import { text } from './strings.js';

// The query behind the name of the view in the address.
export const query = () => new URLSearchParams(location.hash.split('?')[1] || '');

export function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) {
    n /= 1024;
    i += 1;
  }
  return `${i === 0 || n >= 100 ? n.toFixed(0) : n.toFixed(1)} ${units[i]}`;
}

// The layers of a model or a plan, as wide as their number.
export function Layers({ stages }) {
  return html`<div class="layers" aria-hidden="true">${stages.map((stage, i) => html`
    <span key=${i} class=${`layer l${i % 6}`} style=${{ flexGrow: stage.layers[1] - stage.layers[0] }}>${stage.node} ${stage.layers[0]}–${stage.layers[1] - 1}</span>`)}</div>`;
}

// Loads models: [load, run]. `load` is for LoadProgress, and null while none is loaded; run(body) says how it ended.
export function useLoad(setNote, setProblem = setNote) {
  const [load, setLoad] = useState(null);
  const run = async (body) => {
    const state = { note: '', stages: [], bytes: {} }; // bytes: { stage: [done, total] }
    setLoad({ ...state });
    try {
      const model = await call('/load', body, (type, value) => {
        if (type === 'note') state.note = value.note;
        if (type === 'placed') Object.assign(state, { stages: value.stages, bytes: {} });
        if (type === 'progress') state.bytes[value.stage] = [value.bytes_done, value.bytes_total];
        setLoad({ ...state });
      });
      setNote((model.was_there ? text.models.was_there : text.models.loaded)(model.model));
    } catch (error) {
      setProblem(error.message);
    }
    setLoad(null);
  };
  return [load, run];
}

export function LoadProgress({ load }) {
  return html`<div role="status">
    ${load.note && html`<p class="small">${load.note}</p>`}
    ${load.stages.map((stage, i) => {
      const label = text.models.progress(stage.node, stage.layers[0], stage.layers[1] - 1);
      return html`<${Progress} key=${i} label=${label} done=${load.bytes[i]?.[0]} total=${load.bytes[i]?.[1]} />`;
    })}</div>`;
}

export function Progress({ label, done, total }) {
  return html`<label class="progress">${label}
    <progress max="1" value=${total ? done / total : undefined}></progress> ${total ? `${bytes(done)} / ${bytes(total)}` : ''}</label>`;
}

export function Events({ happened }) {
  return html`<section class="card" aria-labelledby="happened"><h2 id="happened">${text.events.heading}</h2>
    ${happened.length === 0 ? html`<p class="small">${text.events.none}</p>` : html`<ol class="events">
      ${happened.map((event) => html`<li key=${`${event.at_ms}${event.kind}${event.node || event.model}`}>
        <time datetime=${new Date(event.at_ms).toISOString()}>${new Date(event.at_ms).toLocaleTimeString()}</time>
        ${' '}${text.events[event.kind]?.(event) || event.kind}</li>`)}</ol>`}
  </section>`;
}
